"""The matrices of a model, how vLLM splits them over GPUs, and the bits per weight of a quantization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from draftwise.knowledge.messages import refusal
from draftwise.knowledge.stored import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How weights are stored."""

    name: str
    bits: int
    """Bits per weight."""
    group: int = 0
    """Weights along the input that share a scale; 0 if a row, or a block of rows, does."""
    group_bits: int = 0
    """Bits of scale and zero point per group."""
    row_bytes: int = 0
    """Bytes of scale per output row."""
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


_TABLE = read_data("precisions")
PRECISIONS: Mapping[str, Precision] = {row["name"]: Precision(**row) for row in _TABLE["weights"]}
BF16 = PRECISIONS["bf16"]

_ALIASES: Mapping[str, str] = _TABLE["aliases"]


def get_precision(name: str, *, where: str = "--quantization") -> Precision:
    """Return a precision by its name, by vLLM's `--quantization` or by a torch type.

    Raises:
        InvalidSetup: no such precision.
    """
    key = name.strip().lower()
    found = PRECISIONS.get(_ALIASES.get(key, key))
    if found is None:
        raise refusal("unknown-precision", case="name", name=name, where=where, names=", ".join(PRECISIONS))
    return found


def precision_of(config: Mapping[str, Any]) -> Precision:
    """Return the precision in which vLLM keeps the weights of a config.json: 16 bits unless quantized."""
    inner = config.get("text_config")
    given = config.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, Mapping) else None
    )
    if not isinstance(given, Mapping):
        return BF16
    if given.get("quant_method", "") is None:
        raise refusal("unknown-precision", case="stored")
    method = str(given.get("quant_method") or "").lower()
    if method == "modelopt" and "FP4" in str(given.get("quant_algo")):
        return PRECISIONS["nvfp4"]
    if method in ("awq", "gptq"):
        return _grouped(given.get("bits"), given.get("group_size"))
    if method == "fp8":
        return PRECISIONS["fp8-block" if given.get("weight_block_size") else "fp8"]
    if method == "compressed-tensors":
        return _of_compressed_tensors(given)
    return get_precision(method, where="quantization_config") if method else BF16


def spared_roles(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the roles (`Part.role`) that a checkpoint's quantization leaves in 16 bits everywhere."""
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


_VOCABULARY_PADDING = 64
"""Rows that vLLM pads a vocabulary to (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""


class Sharding(StrEnum):
    """How tensor parallelism divides a matrix."""

    SHARDED = "sharded"
    """Each GPU has its share."""
    KV = "kv heads"
    """Each GPU has its share of whole heads, and at least one."""
    VOCABULARY = "vocabulary"
    """Each GPU has its share of the padded rows."""
    COPIED = "copied"
    """Each GPU has a full copy: norms, routers, the latent's projections, an EAGLE head's fc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of matrix, with its number of copies in the model."""

    name: str
    role: str
    """embedding, head, attention, mlp, experts, norm, router, fc, state or other."""
    rows: int
    cols: int = 1
    layers: tuple[int, ...] = ()
    """Layers that have it; empty if it is before the first or after the last layer."""
    copies: int = 1
    """Copies per layer, or in the model: experts, heads of Medusa."""
    split: Sharding = Sharding.SHARDED
    heads: int = 1
    """Key-value heads, for a part that is split by them."""
    quantized: bool = True
    """Whether a weight-only quantization applies to it; embeddings, heads, norms and routers stay in 16 bits."""
    last: bool = False
    """Whether it is after the last layer (with pipeline parallelism: on the last GPU)."""
    stored_bits: int = 0
    """Fixed bits per element, as for a map of token ids; 0 if the precision decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStage:
    """The layers of one pipeline stage."""

    first: int
    end: int
    is_first: bool
    is_last: bool

    def layers_of(self, part: Part) -> int:
        """Return how many times the stage has a part, apart from copies."""
        if part.layers:
            return sum(self.first <= layer < self.end for layer in part.layers)
        return int(self.is_last if part.last else self.is_first)


def stages(num_layers: int, pipeline_parallel_size: int = 1) -> tuple[PipelineStage, ...]:
    """Return the stages as vLLM splits them; remaining layers go to stages before the last (get_pp_indices)."""
    counts = [num_layers // pipeline_parallel_size] * pipeline_parallel_size
    for extra in range(num_layers % pipeline_parallel_size):
        counts[-extra - 2 if pipeline_parallel_size > 1 else 0] += 1
    ends = [sum(counts[: index + 1]) for index in range(pipeline_parallel_size)]
    return tuple(
        PipelineStage(first=end - count, end=end, is_first=index == 0, is_last=index == pipeline_parallel_size - 1)
        for index, (count, end) in enumerate(zip(counts, ends, strict=True))
    )


def elements(parts: Iterable[Part]) -> int:
    """Return the number of parameters of a whole model, as on its model card."""
    return sum(part.rows * part.cols * part.copies * max(1, len(part.layers)) for part in parts)


def pad_vocabulary(size: int) -> int:
    """Return the rows that vLLM allocates for a vocabulary."""
    return -(-size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING


def num_bytes(
    parts: Sequence[Part], precision: Precision, *, tensor_parallel_size: int = 1, stage: PipelineStage | None = None
) -> int:
    """Return the bytes of a model's weights on one GPU.

    Args:
        parts: parts of the whole model.
        precision: precision of parts that the quantization applies to; others stay in 16 bits.
        tensor_parallel_size: GPUs that share every layer.
        stage: pipeline stage; None for all layers.
    """
    total = 0.0
    for part in parts:
        times = max(1, len(part.layers)) if stage is None else stage.layers_of(part)
        if times:
            each = _on_one_gpu(part, tensor_parallel_size)
            total += times * part.copies * _bytes_of(each, precision)
    return round(total)


def _on_one_gpu(part: Part, size: int) -> Part:
    """Return a part with the rows that one GPU has."""
    if part.split is Sharding.VOCABULARY:
        return replace(part, rows=-(-pad_vocabulary(part.rows) // size))
    if part.split is Sharding.KV:
        return replace(part, rows=part.rows // part.heads * max(1, -(-part.heads // size)))
    if part.split is Sharding.SHARDED:
        return replace(part, rows=-(-part.rows // size))
    return part


def _bytes_of(part: Part, precision: Precision) -> float:
    if part.stored_bits:
        return part.rows * part.cols * part.stored_bits / 8
    return (precision if part.quantized and part.cols > 1 else BF16).matrix_bytes(part.rows, part.cols)
