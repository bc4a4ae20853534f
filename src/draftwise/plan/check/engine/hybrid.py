"""Targets with Mamba or linear-attention layers: what prefix caching demands of them, with and without speculation."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model
from draftwise.plan.check.model.architecture import supports

__all__ = ["find_hybrid"]


def find_hybrid(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield why a hybrid target cannot cache prefixes as the flags, or the release's defaults, have it."""
    names = target.config.architectures
    if not (supports(context, names, "IsHybrid") or supports(context, names, "IsAttentionFree")):
        return
    asked = context.flag("enable_prefix_caching")
    if asked is False or (asked is not True and not context.holds("hybrid-caches-prefixes")):
        return
    if supports(context, names, "SupportsMambaPrefixCaching") and not context.holds("hybrid-always-aligned"):
        return
    if context.flag("enable_chunked_prefill") is False:
        yield from context.ruling(
            "hybrid-needs-chunked-prefill",
            "enable_chunked_prefill is off, and a hybrid target that caches prefixes needs it.",
            where="enable_chunked_prefill",
            fix="Leave it on, or set enable_prefix_caching to false.",
        )
    if context.spec is not None:
        yield from context.ruling(
            "hybrid-prefixes-or-drafts",
            "enable_prefix_caching is on, and in this release a hybrid target either caches prefixes or speculates.",
            where="enable_prefix_caching",
            fix="Leave it off, or use a newer release.",
        )
