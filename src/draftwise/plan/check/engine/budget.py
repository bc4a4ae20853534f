"""Token and length budgets that drafting eats into: what is left to schedule, and how long requests may get."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import Draft, holds, is_on, rule_if
from draftwise.plan.check.later.limits import get_limits
from draftwise.plan.check.report import Resolved

__all__ = ["find_budget"]

TOKENS = "--max-num-batched-tokens"

_SMALL = 8192
"""Below this many scheduled tokens vLLM warns of slow prefill."""


def find_budget(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what too small a budget rejects, and what it lowers."""
    k = resolved.num_speculative_tokens
    if k is None:
        return
    draft = Draft.resolved(context, resolved)
    limits = get_limits(context)
    tokens, seqs = limits.tokens, limits.requests
    yield from _find_lora(context, k, tokens, seqs)
    if tokens is None:
        return
    if seqs is not None:
        yield from _find_shrunk(context, draft, k, tokens, seqs)
        yield from _find_limited(context, draft, k, tokens, seqs)
    slots = _slots(context, draft, k)
    yield from rule_if(
        context,
        "token-budget-within-slots",
        tokens <= slots,
        f"{tokens} tokens a step leave none to schedule: drafting takes {slots} of one request.",
        where=TOKENS,
        fix=f"Give more than {slots}.",
    )


def _find_lora(context: Context, k: int, tokens: int | None, seqs: int | None) -> Iterator[Ruling]:
    if tokens is None or seqs is None:
        return
    yield from rule_if(
        context,
        "lora-token-budget",
        is_on(context, "enable_lora") and tokens < seqs * (k + 1),
        f"with LoRA, {tokens} tokens a step must cover max_num_seqs * (k + 1) = {seqs} * {k + 1} = {seqs * (k + 1)}.",
        where=TOKENS,
        fix=f"Give at least {seqs * (k + 1)}, or lower num_speculative_tokens or --max-num-seqs.",
    )


def _find_shrunk(context: Context, draft: Draft, k: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge the releases that take draft slots for every request off each step's tokens."""
    slots = _slots(context, draft, k)
    if not slots or is_on(context, "max_num_scheduled_tokens"):
        return
    left = tokens - slots * seqs
    aside = f"drafting sets {slots * seqs} tokens a step aside ({slots} for each of {seqs} requests)"
    for code, least in (("draft-slots-exhaust-tokens", 1), ("draft-slots-starve-scheduler", 0)):
        yield from rule_if(
            context,
            code,
            left < least,
            f"{aside}, and there are {tokens}.",
            where=TOKENS,
            fix=f"Give at least {slots * seqs + _SMALL}, or lower --max-num-seqs.",
        )
    yield from rule_if(
        context,
        "draft-slots-shrink-tokens",
        left > 0,
        f"{aside}: {left} of {tokens} are left{', few for prefill' if left < _SMALL else ''}.",
        where=TOKENS,
        fix=f"Give {tokens + slots * seqs} to schedule as many as without speculation.",
        becomes=f"max_num_scheduled_tokens {left}",
    )


def _find_limited(context: Context, draft: Draft, k: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge block drafters whose draft pass must fit the same number of tokens."""
    if draft.method not in ("dflash", "dspark"):
        return
    rows = k + 1 if draft.method == "dflash" or _fills_in(draft) else k
    yield from rule_if(
        context,
        "draft-pass-limits-requests",
        tokens // rows < seqs,
        f"the draft pass needs {rows} tokens a request, so {tokens} tokens run {tokens // rows} of {seqs} requests.",
        where=TOKENS,
        fix=f"Give at least {rows * seqs}.",
        becomes=f"max_num_active_seqs {tokens // rows}",
    )


def _slots(context: Context, draft: Draft, k: int) -> int:
    """Return the slots that drafting adds for one request, as the release counts them."""
    if holds(context, "draft-slots-are-lookahead"):
        return _lookahead(draft, k)
    if holds(context, "draft-slots-per-drafter") and draft.method == "dflash":
        return k
    parallel = k - 1 if draft.parallel else 0
    return parallel + 1 if draft.method == "draft_model" else parallel


def _lookahead(draft: Draft, k: int) -> int:
    if draft.method == "dflash" or _fills_in(draft):
        return k + 1
    return k if draft.method in ("eagle", "eagle3", "mtp", "dspark", "draft_model") else 0


def _fills_in(draft: Draft) -> bool:
    return draft.method == "dspark" and (draft.config or {}).get("sample_from_anchor", True) is False
