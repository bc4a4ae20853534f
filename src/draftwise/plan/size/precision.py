"""Bytes of a weight matrix in the formats that vLLM serves, scales included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core import InvalidSetup

__all__ = ["BF16", "PRECISIONS", "Precision", "get_precision", "precision_of", "spared_roles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How weights are stored."""

    name: str
    bits: int
    """Bits of one weight."""
    group: int = 0
    """Weights along the input that share one scale; 0 where a row, or a block of rows, does."""
    group_bits: int = 0
    """Bits of scale and zero point of one group."""
    row_bytes: int = 0
    """Bytes of the scale of one output row."""
    block: int = 0
    """Side of the square blocks that share one 4-byte scale."""

    def matrix_bytes(self, rows: int, cols: int) -> float:
        """Return the bytes of a matrix with `rows` outputs and `cols` inputs."""
        total = rows * cols * self.bits / 8 + rows * self.row_bytes
        if self.group:
            total += rows * -(-cols // self.group) * self.group_bits / 8
        if self.block:
            total += 4 * -(-rows // self.block) * -(-cols // self.block)
        return total


BF16 = Precision(name="bf16", bits=16)
PRECISIONS: Mapping[str, Precision] = {
    each.name: each
    for each in (
        BF16,
        Precision(name="fp32", bits=32),
        Precision(name="fp8", bits=8, row_bytes=4),
        Precision(name="fp8-block", bits=8, block=128),
        Precision(name="int8", bits=8, row_bytes=4),
        Precision(name="int4", bits=4, group=128, group_bits=16 + 4),
        Precision(name="mxfp4", bits=4, group=32, group_bits=8),
        Precision(name="nvfp4", bits=4, group=16, group_bits=8),
    )
}
"""By name: 4-bit integers in groups of 128 with a 16-bit scale and a 4-bit zero point (AWQ, GPTQ), MXFP4 in blocks of
32 with an 8-bit exponent, NVFP4 in blocks of 16 with an 8-bit scale (model_executor/layers/quantization)."""

_ALIASES: Mapping[str, str] = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "float16": "bf16",
    "half": "bf16",
    "fp16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
    "w4a16": "int4",
    "w8a8": "int8",
    "w8a16": "int8",
    "fp8_e4m3": "fp8",
    "ptpc_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "experts_int8": "int8",
}


def get_precision(name: str, *, where: str = "--quantization") -> Precision:
    """Return a precision by its name, by vLLM's `--quantization` or by a torch type.

    Raises:
        InvalidSetup: no such precision.
    """
    key = name.strip().lower()
    found = PRECISIONS.get(_ALIASES.get(key, key))
    if found is None:
        raise InvalidSetup.because(
            "unknown-precision",
            f"The bytes of a weight in {name!r} are not known.",
            where=where,
            fix=f"Give one of {', '.join(PRECISIONS)}, or a checkpoint's directory: its headers say the bytes.",
        )
    return found


def precision_of(config: Mapping[str, Any]) -> Precision:
    """Return what a config.json says its weights are stored in; 16 bit where it says nothing."""
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        dtype = str(config.get("torch_dtype") or config.get("dtype") or "bf16").removeprefix("torch.")
        return PRECISIONS["fp32"] if dtype in ("float32", "float") else BF16
    method = str(given.get("quant_method") or "").lower()
    if method in ("awq", "gptq"):
        return _grouped(given.get("bits"), given.get("group_size"))
    if method == "fp8":
        return PRECISIONS["fp8-block" if given.get("weight_block_size") else "fp8"]
    if method == "compressed-tensors":
        return _of_compressed_tensors(given)
    return get_precision(method, where="quantization_config") if method else BF16


def spared_roles(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the roles of parts (`parts.Part.role`) that a checkpoint's quantization leaves in 16 bit everywhere."""
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return frozenset()
    names = given.get("modules_to_not_convert") or given.get("ignore")
    if not isinstance(names, list):
        return frozenset()
    text = [str(name) for name in names if not any(part.isdigit() for part in str(name).split("."))]
    words = {
        "attention": ("self_attn", "attention"),
        "experts": ("experts",),
        "mlp": ("mlp.gate_proj", "mlp.down_proj"),
    }
    return frozenset(role for role, marks in words.items() if any(mark in name for mark in marks for name in text))


def _of_compressed_tensors(given: Mapping[str, Any]) -> Precision:
    groups = given.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return BF16
    bits = weights.get("num_bits")
    if bits == 4:
        return PRECISIONS["nvfp4"] if weights.get("type") == "float" else _grouped(4, weights.get("group_size"))
    return PRECISIONS["fp8" if weights.get("type") == "float" else "int8"] if bits == 8 else BF16


def _grouped(bits: object, group: object) -> Precision:
    bits = bits if isinstance(bits, int) and bits in (2, 3, 4, 8) else 4
    size = group if isinstance(group, int) and group > 0 else 0
    if not size:
        return Precision(name=f"int{bits}", bits=bits, row_bytes=2)
    return Precision(name=f"int{bits}", bits=bits, group=size, group_bits=16 + bits)
