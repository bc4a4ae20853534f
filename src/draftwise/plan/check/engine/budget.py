"""Token and length budgets that drafting eats into: what is left to schedule, and how long requests may get."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.limits import get_limits
from draftwise.plan.check.report import Resolved

__all__ = ["find_budget"]

TOKENS = "--max-num-batched-tokens"

_SMALL = 8192
"""Below this many scheduled tokens vLLM warns of slow prefill."""


def find_budget(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what too small a budget rejects, and what it lowers."""
    k = resolved.num_speculative_tokens
    limits = get_limits(context)
    tokens, seqs = limits.tokens, limits.requests
    if k is None or tokens is None:
        return
    slots = _slots(context, resolved, k)
    if seqs is not None:
        yield from _find_lora(context, k, tokens, seqs)
        yield from _find_set_aside(context, slots, tokens, seqs)
        yield from _find_limited(context, resolved, k, tokens, seqs)
    if tokens <= slots:
        yield from context.rules.ruling(
            "token-budget-within-slots",
            f"{tokens} tokens a step leave none to schedule: drafting takes {slots} of one request.",
            where=TOKENS,
            fix=f"Give more than {slots}.",
        )


def _find_lora(context: Context, k: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    needed = seqs * (k + 1)
    if context.is_on("enable_lora") and tokens < needed:
        yield from context.rules.ruling(
            "lora-token-budget",
            f"With LoRA, {tokens} tokens a step must cover max_num_seqs * (k + 1) = {seqs} * {k + 1} = {needed}.",
            where=TOKENS,
            fix=f"Give at least {needed}, or lower num_speculative_tokens or --max-num-seqs.",
        )


def _find_set_aside(context: Context, slots: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge the releases that take draft slots for every request off each step's tokens."""
    if not slots or context.is_on("max_num_scheduled_tokens"):
        return
    taken = slots * seqs
    left = tokens - taken
    aside = f"Drafting sets {taken} tokens a step aside ({slots} for each of {seqs} requests)"
    for code, least in (("draft-slots-exhaust-tokens", 1), ("draft-slots-starve-scheduler", 0)):
        if left < least:
            yield from context.rules.ruling(
                code,
                f"{aside}, and there are {tokens}.",
                where=TOKENS,
                fix=f"Give at least {taken + _SMALL}, or lower --max-num-seqs.",
            )
    if left > 0:
        yield from context.rules.ruling(
            "draft-slots-shrink-tokens",
            f"{aside}: {left} of {tokens} are left{', few for prefill' if left < _SMALL else ''}.",
            where=TOKENS,
            fix=f"Give {tokens + taken} to schedule as many as without speculation.",
            becomes=f"max_num_scheduled_tokens {left}",
        )


def _find_limited(context: Context, resolved: Resolved, k: int, tokens: int, seqs: int) -> Iterator[Ruling]:
    """Judge block drafters whose draft pass must fit the same number of tokens."""
    if resolved.facts.network != "one_pass":
        return
    rows = _lookahead(context, resolved, k)
    if tokens // rows < seqs:
        yield from context.rules.ruling(
            "draft-pass-limits-requests",
            f"The draft pass needs {rows} tokens a request, so {tokens} tokens run {tokens // rows} of {seqs} "
            "requests.",
            where=TOKENS,
            fix=f"Give at least {rows * seqs}.",
            becomes=f"max_num_active_seqs {tokens // rows}",
        )


def _slots(context: Context, resolved: Resolved, k: int) -> int:
    """Return the slots that drafting adds for one request, as the release counts them."""
    if context.rules.holds("draft-slots-are-lookahead"):
        return _lookahead(context, resolved, k)
    if context.rules.applies("draft-slots-per-drafter", resolved.method):
        return k
    parallel = k - 1 if resolved.parallel_drafting else 0
    return parallel + 1 if resolved.facts.drafts_from == "own_model" else parallel


def _lookahead(context: Context, resolved: Resolved, k: int) -> int:
    """Return the slots of its own KV cache that a draft takes: a block filled in after its anchor takes one more."""
    facts = resolved.facts
    after_anchor = facts.drafts_whole_block and context.draft_config.get("sample_from_anchor", True) is False
    return {"none": 0, "k": k, "k + 1": k + 1}[facts.lookahead] + after_anchor
