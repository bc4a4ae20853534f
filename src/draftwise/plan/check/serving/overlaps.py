"""Speculation together with pipeline, batch-overlap and prefix features of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.report import Resolved

__all__ = ["find_overlaps"]

_LARGE_BLOCK = 64
"""Block size in tokens from which losing one block of every prefix hit is worth a word."""


def find_overlaps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield features that fail later beside this drafter, or that it makes less effective."""
    method = resolved.method
    if context.is_on("enable_dbo") and resolved.runner == "V1" and resolved.facts.keeps_kv:
        yield from context.rules.ruling(
            "batch-overlap-breaks-drafter",
            "The drafter has no split batches: the first batch that --enable-dbo splits stops the engine.",
            where="--enable-dbo",
            fix="Drop the flag.",
        )
    if context.stages > 1 and resolved.runner == "V2":
        yield from context.rules.ruling(
            "aux-states-over-pipeline",
            f"{method} with {context.stages} pipeline stages works for targets whose class hands its layers' states "
            "on; the others end with a ValueError while loading.",
            where="--pipeline-parallel-size",
            fix="Try a start before you rely on it, or use tensor parallelism.",
            method=method,
        )
    yield from _find_dropped_block(context, method)


def _find_dropped_block(context: Context, method: str) -> Iterator[Ruling]:
    """Judge the last block of each prefix hit, which is computed again because the drafter needs its hidden states."""
    block = context.size("block_size")
    large = context.given.get("block_size") is not None and block is not None and block >= _LARGE_BLOCK
    if context.flags.get("enable_prefix_caching") is False or context.keys.get("disable_eagle_block_drop"):
        return
    if large or has_interface(context, "IsHybrid"):
        size = f"blocks of {block} tokens" if large else "the large blocks of a hybrid model"
        yield from context.rules.ruling(
            "prefix-hits-lose-a-block",
            f"{method} drops the last block of every prefix-cache hit, to have its hidden states; with {size} short "
            "shared prefixes are computed again.",
            where="--block-size",
            fix="Watch the prefix hit rate with and without speculation.",
            method=method,
        )
