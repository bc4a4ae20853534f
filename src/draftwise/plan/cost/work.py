"""Bytes and arithmetic of one forward pass of a model or a drafter on each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.knowledge.methods import get_method
from draftwise.plan.size.decoder_parts import decoder_parts
from draftwise.plan.size.drafter_parts import describe_drafter
from draftwise.plan.size.shapes import read_shape, read_text_config
from draftwise.plan.size.weight_parts import BF16, Part, Precision, Sharding, elements, num_bytes

Config = Mapping[str, Any]

_OWN_HEADS = frozenset({"lm_head", "head"})
"""Names of parts that choose the token; drafters without one read the target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One pass over a batch, apart from the keys and values of its sequences."""

    dense_bytes: float
    """Weights that every pass reads."""
    expert_bytes: float = 0.0
    """Weights of all routed experts."""
    share_per_row: float = 0.0
    """Fraction of the routed experts that one token activates."""
    flops_per_row: float
    head_flops_per_row: float = 0.0
    """Part of `flops_per_row` for choosing tokens; a drafter's first pass has it only for rows that it drafts at."""
    weights: int
    """Parameters of the whole model, on all GPUs."""

    def bytes_for(self, tokens: float) -> float:
        """Return the bytes of weights that a pass reads for `tokens` with independent choices of experts."""
        return self.dense_bytes + self.expert_bytes * self.expert_share(tokens)

    def expert_share(self, tokens: float) -> float:
        """Return the fraction of the routed experts that `tokens` choose together, each independently."""
        return float(1 - (1 - self.share_per_row) ** tokens)


def find_work(config: Config, precision: Precision, tensor_parallel_size: int = 1) -> Work | None:
    """Return the work of a language model; None if the config is not a decoder's."""
    text = read_text_config(config)
    try:
        shape = read_shape(text)
    except InvalidSetup:
        return None
    parts = decoder_parts(text, shape)
    read = [part for part in parts if part.role != "embedding" or shape.tie_word_embeddings]
    return _add_up(text, read, precision, tensor_parallel_size, weights=elements(parts))


def find_drafter_work(
    method: str, k: int, target: Config, drafter: Config | None, precision: Precision, tensor_parallel_size: int = 1
) -> Work | None:
    """Return the work of one pass of a head or module; None for methods without weights and unknown shapes.

    Args:
        method: method in vLLM's spelling.
        k: draft tokens, which is the number of Medusa's heads.
        target: the target's config.json.
        drafter: the drafter's config.json; None assumes the usual layout of its method.
        precision: precision of the target's own modules; separate heads and models have 16 bits.
        tensor_parallel_size: GPUs that share every layer.
    """
    text = read_text_config(target)
    try:
        described = describe_drafter(method, k, text, None if drafter is None else read_text_config(drafter))
    except InvalidSetup:
        return None
    if not described.parts:
        return None
    parts = [part for part in described.parts if part.role != "embedding"]
    if not any(part.name in _OWN_HEADS for part in parts):
        parts.append(_shared_head(text))
    if get_method(method).weights == "target":  # one module a pass, of the target's kind and precision
        parts = [replace(part, layers=part.layers[:1]) for part in parts]
        return _add_up(text, parts, precision, tensor_parallel_size)
    return _add_up(drafter or {}, parts, BF16, tensor_parallel_size)


def count_drafter_kv(
    method: str, k: int, target: Config, drafter: Config | None, tensor_parallel_size: int = 1
) -> float:
    """Return the KV bytes per token of a drafter's own layers on each GPU, in 16 bits; 0 without such layers.

    Raises:
        InvalidSetup: the drafter's shape is unknown.
    """
    described = describe_drafter(method, k, read_text_config(target), drafter)
    if described.shape is None or not described.facts.keeps_kv:
        return 0.0
    return float(sum(layer.values_per_rank(tensor_parallel_size) for layer in described.shape.kv_layers()) * 2)


def _shared_head(target: Config) -> Part:
    """Return the target's lm_head, which heads without one of their own read."""
    rows, cols = target["vocab_size"], target["hidden_size"]
    return Part(name="lm_head", role="head", rows=rows, cols=cols, split=Sharding.VOCABULARY, quantized=False)


def _add_up(
    config: Config, parts: Sequence[Part], precision: Precision, tensor_parallel_size: int, *, weights: int = 0
) -> Work:
    routed = [part for part in parts if part.role == "experts" and part.copies > 1]
    dense = [part for part in parts if part not in routed]
    share = _share_per_row(config, routed)
    heads = [part for part in dense if part.role == "head"]
    return Work(
        dense_bytes=num_bytes(dense, precision, tensor_parallel_size=tensor_parallel_size),
        expert_bytes=num_bytes(routed, precision, tensor_parallel_size=tensor_parallel_size),
        share_per_row=share,
        flops_per_row=2 * (elements(dense) + share * elements(routed)) / tensor_parallel_size,
        head_flops_per_row=2 * elements(heads) / tensor_parallel_size,
        weights=weights or elements(parts),
    )


def _share_per_row(config: Config, routed: Sequence[Part]) -> float:
    count = max((part.copies for part in routed), default=0)
    used = config.get("num_experts_per_tok") or config.get("experts_per_token") or 1
    return min(1.0, int(used) / count) if count else 0.0
