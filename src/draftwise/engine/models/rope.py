"""Rotary position embeddings, with every scaling that the dense families use.

Source: `modeling_rope_utils.py` of transformers; YaRN is arXiv 2309.00071.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftwise.core import InvalidSetup, ModelShape
from draftwise.knowledge.messages import refusal

_LARGEST_HEAD = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Frequencies of the rotation, and their range."""

    frequencies_D: Tensor
    """float32 radians per position, [head_dim / 2]."""
    attention_scale: float
    """Factor on both cosine and sine."""
    context_limit: int
    """Number of positions that the frequencies are meant for."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], shape: ModelShape, *, where: str = "config.json") -> Rope:
        """Return the rotation that a config.json describes, in its old or its transformers-5 layout.

        Raises:
            InvalidSetup: the scaling is unknown, or a value is missing.
        """
        given = config.get("rope_parameters") or config.get("rope_scaling") or {}
        params = {"rope_theta": config.get("rope_theta") or 10000.0} | {k: v for k, v in given.items() if v is not None}
        params.setdefault("original_max_position_embeddings", shape.max_position_embeddings)
        kind = params.get("rope_type") or params.get("type") or "default"
        partial = params.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
        if kind not in _SCALINGS or partial != 1.0:
            what = f"partial_rotary_factor {partial}" if kind in _SCALINGS else f"Rope scaling {kind!r}"
            raise refusal("unsupported-rope", case="scaling", what=what, where=where, scalings=", ".join(_SCALINGS))
        if shape.head_dim > _LARGEST_HEAD:
            raise _refuse(f"head_dim must be at most {_LARGEST_HEAD}, got {shape.head_dim}.", where)
        exponents_D = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        plain_D = 1.0 / (params["rope_theta"] ** exponents_D)
        try:
            frequencies_D, scale, limit = _SCALINGS[kind](plain_D, params, shape)
        except KeyError as error:
            raise refusal("rope-incomplete", kind=kind, missing=error.args[0], where=where) from None
        except (ArithmeticError, ValueError) as error:
            raise _refuse(f"Rope scaling {kind!r} cannot be computed from these numbers: {error}.", where) from None
        if not 0 < limit < 2**31:
            raise _refuse(f"Rope scaling {kind!r} makes a context of {limit:g} tokens.", where)
        return cls(frequencies_D=frequencies_D, attention_scale=scale, context_limit=limit)

    def table(self) -> Tensor:
        """Return cosines followed by sines for all positions up to the limit: float32, [context_limit + 1, D].

        It is computed on the frequencies' device, with exactly the same bits as `rotations`.
        """
        positions_T = torch.arange(self.context_limit + 1, device=self.frequencies_D.device)
        return torch.cat(self.rotations(positions_T, torch.float32), dim=-1)

    def rotations(self, positions_N: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each [N, head_dim / 2], for the given positions."""
        angles_ND = positions_N.float().unsqueeze(1) * self.frequencies_D
        cos_ND, sin_ND = angles_ND.cos(), angles_ND.sin()
        if self.attention_scale != 1.0:
            cos_ND, sin_ND = cos_ND * self.attention_scale, sin_ND * self.attention_scale
        return cos_ND.to(dtype), sin_ND.to(dtype)


def _refuse(message: str, where: str) -> InvalidSetup:
    fix = "Download config.json again, or correct it."
    return InvalidSetup.because("bad-config-value", message, where=where, fix=fix)


def _default(plain_D: Tensor, _params: Mapping[str, Any], shape: ModelShape) -> tuple[Tensor, float, int]:
    return plain_D, 1.0, shape.max_position_embeddings


def _linear(plain_D: Tensor, params: Mapping[str, Any], shape: ModelShape) -> tuple[Tensor, float, int]:
    return plain_D / params["factor"], 1.0, int(shape.max_position_embeddings * params["factor"])


def _llama3(plain_D: Tensor, params: Mapping[str, Any], shape: ModelShape) -> tuple[Tensor, float, int]:
    factor, low, high = params["factor"], params["low_freq_factor"], params["high_freq_factor"]
    original = params["original_max_position_embeddings"]
    wavelength_D = 2 * math.pi / plain_D
    smooth_D = (original / wavelength_D - low) / (high - low)
    blended_D = (1 - smooth_D) * plain_D / factor + smooth_D * plain_D
    scaled_D = torch.where(wavelength_D > original / low, plain_D / factor, blended_D)
    return torch.where(wavelength_D < original / high, plain_D, scaled_D), 1.0, shape.max_position_embeddings


def _yarn(plain_D: Tensor, params: Mapping[str, Any], shape: ModelShape) -> tuple[Tensor, float, int]:
    original = params["original_max_position_embeddings"]
    factor = params.get("factor") or shape.max_position_embeddings / original
    low, high = (
        shape.head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(params["rope_theta"]))
        for turns in (params.get("beta_fast") or 32, params.get("beta_slow") or 1)
    )
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, shape.head_dim - 1)
    ramp_D = (torch.arange(len(plain_D), dtype=torch.float32) - low) / (high - low if high != low else 0.001)
    keep_D = 1 - ramp_D.clamp(0, 1)
    frequencies_D = plain_D / factor * (1 - keep_D) + plain_D * keep_D
    return frequencies_D, _yarn_scale(params, factor), max(shape.max_position_embeddings, int(original * factor))


def _yarn_scale(params: Mapping[str, Any], factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if params.get("attention_factor") is not None:
        return float(params["attention_factor"])
    if params.get("mscale") and params.get("mscale_all_dim"):
        return scale(params["mscale"]) / scale(params["mscale_all_dim"])
    return scale(1.0)


_SCALINGS: dict[str, Callable[[Tensor, Mapping[str, Any], ModelShape], tuple[Tensor, float, int]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    # Frequencies that change with the length would turn keys already cached; up to max_position_embeddings
    # dynamic scaling does not change them, and that is where the context ends here.
    "dynamic": _default,
}
