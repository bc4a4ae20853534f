"""The quantization of a checkpoint's weights, and the number of parameters in its stored elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.config_values import get_int, get_mapping
from draftwise.checkpoints.headers import Tensor, role_of

_PACKED = (".qweight", ".weight_packed", "_blocks", ".qweight_packed")
"""Endings of the tensors that hold several weights in one element: GPTQ and AWQ, compressed-tensors, MXFP4."""
_PRECISION_BITS = {"fp8": 8, "mxfp4": 4, "nvfp4": 4, "w4a16": 4, "w8a8": 8, "int8": 8}
"""Bits of a weight by what the method's or the algorithm's name contains."""
_ELEMENT_BITS = {"I32": 32, "U32": 32, "I8": 8, "U8": 8, "I16": 16, "I64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The settings in quantization_config."""

    method: str
    """`quant_method`, such as gptq, awq, fp8 or compressed-tensors."""
    bits: int | None
    """Bits per weight; None if the config lacks it."""
    group_size: int | None
    """Number of weights that share a scale; None for whole rows or tensors, or if the config lacks it."""

    def __str__(self) -> str:
        parts = [
            self.method,
            f"{self.bits} bits" if self.bits else "",
            f"group {self.group_size}" if self.group_size else "",
        ]
        return ", ".join(part for part in parts if part)


def find_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """Return the quantization in a config; None without one."""
    given = get_mapping(config, "quantization_config") or get_mapping(config, "compression_config")
    inner = get_mapping(given, "quantization") or given  # ModelOpt's own file has one more level
    if not inner:
        return None
    method = str(given.get("quant_method") or inner.get("quant_algo") or "unknown").lower()
    weights = _group_weights(inner)
    bits = get_int(weights, "num_bits") or get_int(inner, "bits", "w_bit") or _named_bits(method, inner)
    return Quantization(
        method=method,
        bits=bits,
        group_size=get_int(weights, "group_size") or get_int(inner, "group_size", "q_group_size"),
    )


def _group_weights(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `weights` of compressed-tensors' first group."""
    for group in get_mapping(config, "config_groups").values():
        if isinstance(group, Mapping):
            return get_mapping(group, "weights")
    return {}


def _named_bits(method: str, config: Mapping[str, Any]) -> int | None:
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return 4 if config.get("load_in_4bit") else 8
    named = f"{method} {config.get('quant_algo') or ''} {config.get('quant_type') or ''}".lower()
    return next((bits for part, bits in _PRECISION_BITS.items() if part in named), None)


def count_parameters(tensors: Iterable[Tensor], quantization: Quantization | None) -> int:
    """Return the number of weights, with quantized ones unpacked, without scales, zero points and maps."""
    bits = quantization.bits if quantization is not None else None
    return sum(
        tensor.num_elements * _per_element(tensor, bits)
        for tensor in tensors
        if role_of(tensor.name) not in ("quantization", "vocabulary map")
    )


def _per_element(tensor: Tensor, bits: int | None) -> int:
    stored = _ELEMENT_BITS.get(tensor.dtype)
    is_packed = tensor.name.endswith(_PACKED) or (tensor.dtype == "U8" and tensor.name.endswith(".weight"))
    return max(1, stored // bits) if bits and stored and is_packed else 1
