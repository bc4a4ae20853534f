"""Speculation together with pipeline, batch-overlap and prefix or prefill features of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import Draft, get_size, has_interface, is_on, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_conflicts", "find_overlaps"]

_HIDDEN_STATES = ("eagle", "eagle3", "mtp", "deepseek_mtp", "ernie_mtp", "qwen3_next_mtp", "dflash", "dspark")
"""Methods that draft from the target's hidden states (vLLM's `use_eagle`)."""
_LARGE_BLOCK = 64
"""Block size in tokens from which losing one block of every prefix hit is worth a word."""


def find_conflicts(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield engine features that the engine config refuses beside this drafter."""
    for code in ("fast-prefill-rejects-drafter", "fast-prefill-not-written-for-drafter"):
        yield from rule_if(
            context, code, is_on(context, "kv_sharing_fast_prefill") and resolved.method in _HIDDEN_STATES,
            f"--kv-sharing-fast-prefill leaves the prompt's logits wrong, and {resolved.method} drafts from them.",
            where="--kv-sharing-fast-prefill", fix="Drop the flag, or use ngram or suffix.",
        )  # fmt: skip


def find_overlaps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield features that fail later beside this drafter, or that it makes less effective."""
    draft = Draft.resolved(context, resolved)
    stages = get_size(context, "pipeline_parallel_size") or 1
    drafts = resolved.method in (*_HIDDEN_STATES, "draft_model")
    yield from rule_if(
        context, "batch-overlap-breaks-drafter",
        is_on(context, "enable_dbo") and resolved.runner == "V1" and drafts,
        "the drafter has no split batches: the first batch that --enable-dbo splits stops the engine.",
        where="--enable-dbo", fix="Drop the flag.",
    )  # fmt: skip
    yield from rule_if(
        context, "aux-states-over-pipeline",
        stages > 1 and resolved.runner == "V2" and resolved.method in ("eagle3", "dflash"),
        f"{resolved.method} with {stages} pipeline stages works for targets whose class hands its layers' states on; "
        "the others end with a ValueError while loading.",
        where="--pipeline-parallel-size", fix="Try a start before you rely on it, or use tensor parallelism.",
    )  # fmt: skip
    yield from _find_dropped_block(context, draft)


def _find_dropped_block(context: Context, draft: Draft) -> Iterator[Ruling]:
    """Judge the last block of each prefix hit, which is computed again because the drafter needs its hidden states."""
    block = get_size(context, "block_size")
    large = context.given.get("block_size") is not None and block is not None and block >= _LARGE_BLOCK
    hybrid = has_interface(context, "IsHybrid") is True
    caches = context.flag("enable_prefix_caching") is not False
    if draft.method not in _HIDDEN_STATES or not caches or draft.spec.get("disable_eagle_block_drop"):
        return
    size = f"blocks of {block} tokens" if large else "the large blocks of a hybrid model"
    yield from rule_if(
        context, "prefix-hits-lose-a-block", large or hybrid,
        f"{draft.method} drops the last block of every prefix-cache hit, to have its hidden states; with {size} short "
        "shared prefixes are computed again.",
        where="--block-size", fix="Watch the prefix hit rate with and without speculation.",
    )  # fmt: skip
