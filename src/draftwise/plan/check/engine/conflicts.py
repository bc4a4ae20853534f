"""Engine features and lengths that go with some drafters only."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_conflicts"]


def find_conflicts(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the engine's config refuses or lowers beside this drafter."""
    yield from _find_fast_prefill(context, resolved)
    yield from _find_shorter_model(context, resolved)


def _find_fast_prefill(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    flag = "--kv-sharing-fast-prefill"
    if not context.is_on("kv_sharing_fast_prefill"):
        return
    for code in ("fast-prefill-rejects-drafter", "fast-prefill-not-written-for-drafter"):
        yield from context.rules.ruling(
            code,
            f"{flag} leaves the prompt's logits wrong, and {resolved.method} drafts from them.",
            where=flag,
            fix="Drop the flag, or use ngram or suffix.",
            method=resolved.method,
        )


def _find_shorter_model(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield whether a short draft model lowers what the server accepts."""
    draft, target = resolved.draft_max_model_len, context.size("max_model_len") or _find_length(context)
    if resolved.facts.drafts_from != "own_model" or draft is None or target is None or draft >= target:
        return
    lengths = f"The draft model takes {draft} tokens and the target {target}:"
    if resolved.runner == "V2":
        yield from context.rules.ruling(
            "draft-model-limits-length",
            f"{lengths} the server refuses requests beyond {draft}.",
            where="model",
            fix="Use a draft model with the target's context length, or VLLM_USE_V2_MODEL_RUNNER=0.",
            becomes=f"max_model_len {draft}",
        )
    if resolved.runner == "V1":
        message = f"{lengths} beyond {draft} nothing is drafted."
        yield from context.rules.ruling("draft-model-stops-early", message, where="model")


def _find_length(context: Context) -> int | None:
    value = None if context.target is None else context.target.text_config.get("max_position_embeddings")
    return value if isinstance(value, int) else None
