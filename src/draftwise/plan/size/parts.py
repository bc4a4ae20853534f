"""A weight matrix as a row of an inventory: its shape, the layers that have it, and how vLLM divides it among GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from draftwise.plan.size.precision import BF16, Precision

__all__ = ["Part", "Split", "Stage", "elements", "num_bytes", "pad_vocabulary", "stages"]

_VOCABULARY_PADDING = 64
"""Rows that vLLM pads a vocabulary to (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)."""


class Split(StrEnum):
    """How tensor parallelism divides a matrix."""

    SHARDED = "sharded"
    """Each GPU has its share."""
    KV = "kv heads"
    """Each GPU has its share of whole heads, and at least one."""
    VOCABULARY = "vocabulary"
    """Each GPU has its share of the padded rows."""
    COPIED = "copied"
    """Each GPU has all of it: norms, routers, the latent's projections, an EAGLE head's fc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of matrix, as often as the model has it."""

    name: str
    role: str
    """embedding, head, attention, mlp, experts, norm, router, fc, state or other."""
    rows: int
    cols: int = 1
    layers: tuple[int, ...] = ()
    """Layers that have it; empty for what stands before the first or behind the last layer."""
    copies: int = 1
    """Times that a layer, or the model, has it: experts, heads of Medusa."""
    split: Split = Split.SHARDED
    heads: int = 1
    """Key-value heads of a part that is split by them."""
    quantized: bool = True
    """Whether a weight-only quantization reaches it: embeddings, heads, norms and routers stay in 16 bit."""
    last: bool = False
    """Whether it stands behind the last layer (with pipeline parallelism: on the last GPU)."""
    stored_bits: int = 0
    """Bits of one element whatever the precision, as for a map of token ids; 0 where the precision decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers of one pipeline stage."""

    first: int
    end: int
    is_first: bool
    is_last: bool

    def layers_of(self, part: Part) -> int:
        """Return how many times the stage has a part, copies aside."""
        if part.layers:
            return sum(self.first <= layer < self.end for layer in part.layers)
        return int(self.is_last if part.last else self.is_first)


def stages(num_layers: int, pipeline_parallel_size: int = 1) -> tuple[Stage, ...]:
    """Return the stages as vLLM cuts them: what does not divide goes to the stages before the last (get_pp_indices)."""
    counts = [num_layers // pipeline_parallel_size] * pipeline_parallel_size
    for extra in range(num_layers % pipeline_parallel_size):
        counts[-extra - 2 if pipeline_parallel_size > 1 else 0] += 1
    ends = [sum(counts[: index + 1]) for index in range(pipeline_parallel_size)]
    return tuple(
        Stage(first=end - count, end=end, is_first=index == 0, is_last=index == pipeline_parallel_size - 1)
        for index, (count, end) in enumerate(zip(counts, ends, strict=True))
    )


def elements(parts: Iterable[Part]) -> int:
    """Return the parameters of a whole model, each counted once: what a model card publishes."""
    return sum(part.rows * part.cols * part.copies * max(1, len(part.layers)) for part in parts)


def pad_vocabulary(size: int) -> int:
    """Return the rows that vLLM allocates for a vocabulary."""
    return -(-size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING


def num_bytes(
    parts: Sequence[Part], precision: Precision, *, tensor_parallel_size: int = 1, stage: Stage | None = None
) -> int:
    """Return the bytes of a model's weights on one GPU.

    Args:
        parts: of the whole model.
        precision: of the parts that a quantization reaches; the others stay in 16 bit.
        tensor_parallel_size: GPUs that share every layer.
        stage: of pipeline parallelism; None for all layers.
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
    if part.split is Split.VOCABULARY:
        return replace(part, rows=-(-pad_vocabulary(part.rows) // size))
    if part.split is Split.KV:
        return replace(part, rows=part.rows // part.heads * max(1, -(-part.heads // size)))
    if part.split is Split.SHARDED:
        return replace(part, rows=-(-part.rows // size))
    return part


def _bytes_of(part: Part, precision: Precision) -> float:
    if part.stored_bits:
        return part.rows * part.cols * part.stored_bits / 8
    return (precision if part.quantized and part.cols > 1 else BF16).matrix_bytes(part.rows, part.cols)
