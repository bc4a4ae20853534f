"""Targets with Mamba or linear-attention layers: what prefix caching demands of them, with and without speculation."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.architecture import supports
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model

__all__ = ["find_hybrid"]


def find_hybrid(context: Context, target: Model, *, speculates: bool) -> Iterator[Ruling]:
    """Yield why a hybrid target cannot cache prefixes as the flags, or the release's defaults, have it."""
    names = target.config.architectures
    if not (supports(context, names, "IsHybrid") or supports(context, names, "IsAttentionFree")):
        return
    asked = context.flag("enable_prefix_caching")
    if asked is False or (asked is not True and not context.holds("hybrid-caches-prefixes")):
        return
    own = supports(context, names, "SupportsMambaPrefixCaching") and not context.holds("hybrid-always-aligned")
    chunked = context.rule("hybrid-needs-chunked-prefill")
    if chunked is not None and not own and context.flag("enable_chunked_prefill") is False:
        yield chunked.ruling(
            "is off, and a hybrid target that caches prefixes needs it.", where="enable_chunked_prefill",
            fix="Leave it on, or set enable_prefix_caching to false.",
        )  # fmt: skip
    drafts = context.rule("hybrid-prefixes-or-drafts")
    if drafts is not None and not own and speculates:
        yield drafts.ruling(
            "is on, and in this release a hybrid target either caches prefixes or speculates.",
            where="enable_prefix_caching", fix="Leave it off, or use a newer release.",
        )  # fmt: skip
