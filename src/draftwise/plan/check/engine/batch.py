"""Tokens and requests a step: what a server defaults to on its GPU, and sizes that its scheduler refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model

__all__ = ["fill_in_batch", "find_batch"]

_TOKENS = "max_num_batched_tokens"
_SEQS = "max_num_seqs"
_GIB = 2**30
_HUGE, _LARGE = 160 * _GIB, 70 * _GIB
"""GPU memory from which on servers default to larger batches, in bytes."""


def fill_in_batch(context: Context, target: Model | None) -> Context:
    """Return the context with the batch sizes that the server takes where none are given and its GPU is known.

    The defaults are those of `vllm serve`; the offline class takes others.
    """
    defaults = _find_defaults(context)
    if defaults is None or target is None:
        return context
    tokens, seqs = context.given.get(_TOKENS), context.given.get(_SEQS)
    double = 2 if context.flags.get("performance_mode") == "throughput" else 1
    some = seqs if isinstance(seqs, int) else defaults[1] * double
    if not isinstance(tokens, int):
        tokens = defaults[0] * double
        if not context.chunks_prefill:
            tokens = max(tokens, target.max_model_len)
        if context.rules.holds("batch-bounded-by-context"):
            tokens = min(tokens, some * target.max_model_len)
    if not isinstance(seqs, int):
        seqs = min(some, tokens) if context.rules.holds("requests-bounded-by-batch") else some
    return replace(context, flags={**context.flags, _TOKENS: tokens, _SEQS: seqs})


def _find_defaults(context: Context) -> tuple[int, int] | None:
    """Return tokens and requests a step, None where they depend on a GPU that is not known."""
    device = context.setup.device
    if context.platform == "cpu":
        ranks = _get(context.flags, "pipeline_parallel_size") * _get(context.flags, "tensor_parallel_size")
        return 2048 * ranks, 128 * ranks
    if context.runs_on_v0:
        return 2048, 256
    if device is None or device.memory_bytes is None:
        return None
    if device.memory_bytes >= _HUGE and context.rules.holds("batch-defaults-for-huge-gpus"):
        return 16384, 1024
    if device.memory_bytes >= _LARGE and "a100" not in device.name.lower():
        return 8192, 1024
    return 2048, 256


def _get(flags: Mapping[str, Any], name: str) -> int:
    value = flags.get(name, 1)
    return value if isinstance(value, int) else 1


def find_batch(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield why the scheduler refuses the batch sizes."""
    tokens, seqs = context.flags.get(_TOKENS), context.flags.get(_SEQS)
    if not isinstance(tokens, int):
        return
    if target is not None and tokens < target.max_model_len and not context.chunks_prefill:
        yield from context.rules.ruling(
            "batch-below-context",
            f"{_TOKENS} is {tokens}, below the context of {target.max_model_len}, and prompts are not chunked.",
            where=_TOKENS,
            fix=f"Give at least {target.max_model_len}, or leave enable_chunked_prefill on.",
        )
    if isinstance(seqs, int) and tokens < seqs:
        message = f"{_TOKENS} is {tokens}, below max_num_seqs, {seqs}."
        yield from context.rules.ruling("batch-below-requests", message, where=_TOKENS, fix=f"Give at least {seqs}.")
