"""Modules for multi-token prediction inside a target: how many its config promises, and which are really there.

Saving a model with transformers drops them for most families, and quantizing one often does, while config.json keeps
its promise; vLLM then fails only when it loads the drafter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.dimensions import get_int, get_mapping
from draftwise.checkpoints.headers import Headers
from draftwise.checkpoints.roles import MTP, layer_of, role_of

__all__ = ["MtpModules", "find_mtp_modules"]

_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Where configs state the number (vLLM, config/speculative.py, hf_config_override)."""
_NESTED = ("text_config", "mtp_config", "llm_config")
_NUMBER = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.(?:layers\.)?(\d+)\.")
_JOINS = re.compile(r"\.eh_proj\.")
_LAYOUTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model.layers.{layer}.", ("enorm", "hnorm", "eh_proj")),
    ("model.mtp_layers.{module}.", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")),
    ("mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")),
)
"""What joins state and token in the modules of DeepSeek and GLM, MiMo, and Qwen3-Next and Qwen3.5, by their prefix; the
rest of a module is a usual decoder layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpModules:
    """What a checkpoint says and holds of them."""

    stated: int | None
    """Number in config.json: vLLM's n_predict; None where it states none."""
    key: str
    """Field that states it, the usual one where none does."""
    present: tuple[int, ...]
    """Modules with tensors, counted from 0."""
    incomplete: tuple[str, ...]
    """Tensors that a module which is there lacks."""
    num_bytes: int

    @property
    def lost(self) -> int:
        """Modules that config.json promises and the files do not hold."""
        return max(0, (self.stated or 0) - len(self.present))


def find_mtp_modules(config: Mapping[str, Any], headers: Headers) -> MtpModules | None:
    """Return the modules, None for a checkpoint that neither states nor holds any."""
    key, stated = _find_stated(config)
    layers = get_int(config, "num_hidden_layers") or get_int(get_mapping(config, "text_config"), "num_hidden_layers")
    if not stated and not any(_JOINS.search(name) for name in headers.tensors):
        layers = None  # a layer too many is no module yet
    tensors = {name: tensor for name, tensor in headers.tensors.items() if role_of(name, layers) == MTP}
    if not stated and not tensors:
        return None
    present = {_module_of(name, layers) for name in tensors}
    return MtpModules(
        stated=stated,
        key=key,
        present=tuple(sorted(present)),
        incomplete=tuple(_find_incomplete(headers, layers, present)),
        num_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
    )


def _find_stated(config: Mapping[str, Any]) -> tuple[str, int | None]:
    for place in (config, *(get_mapping(config, name) for name in _NESTED)):
        for key in _KEYS:
            if (count := get_int(place, key)) is not None:
                return key, count
    return _KEYS[0], None


def _module_of(name: str, layers: int | None) -> int:
    layer = layer_of(name)
    if layers is not None and layer is not None and layer >= layers:
        return layer - layers
    match = _NUMBER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else 0


def _find_incomplete(headers: Headers, layers: int | None, present: set[int]) -> list[str]:
    """Return what modules that are there lack at their entry; layouts that are not known are not looked into."""
    names = headers.tensors
    lacking: dict[str, None] = {}
    for module in sorted(present):
        for pattern, entries in _LAYOUTS:
            prefix = pattern.format(layer=-1 if layers is None else layers + module, module=module)
            own = [f"{prefix}{entry}" for entry in entries]
            absent = [part for part in own if not any(name.startswith(part + ".") for name in names)]
            if len(absent) < len(own):
                lacking |= dict.fromkeys(absent)
    return list(lacking)
