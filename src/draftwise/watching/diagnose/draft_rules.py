"""Rules on whether drafts are made at all: draft counters by server and rank, coverage, draft length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import log

from draftwise.core import Window
from draftwise.knowledge.messages import text_of
from draftwise.watching.diagnose.pool_case import (
    MIN_DRAFTS,
    MIN_REQUESTS,
    MIN_TOKENS,
    DiagnosisRule,
    PoolCase,
    RuleMatch,
    count_drafted,
    count_requests,
    find_losses,
    find_only,
    is_less,
    tell,
)

_FEW_DRAFTS = 0.8
"""Share of the expected coverage or draft length below which drafts are missing."""
_MANY_TOKENS = 2000
"""Output tokens of which even a lookup in the text drafts some."""


def _generates(window: Window) -> bool:
    return (window.output_tokens or 0) >= MIN_TOKENS


def _find_no_traffic(case: PoolCase) -> RuleMatch | None:
    tokens = case.window.output_tokens
    if tokens is None or tokens >= MIN_TOKENS or case.window.sleeping:
        return None
    return RuleMatch(message=f"The servers generated only {tokens:,} tokens, too few to judge.", loss=0.0)


def _find_asleep(case: PoolCase) -> RuleMatch | None:
    asleep = [window for window in case.windows if window.sleeping and not window.output_tokens]
    if not asleep:
        return None
    of = f"{len(asleep)} of {len(case.windows)} engines {'is' if len(asleep) == 1 else 'are'}"
    where = "" if len(asleep) == len(case.windows) else asleep[0].instance
    return RuleMatch(message=f"{of} asleep, with no answers.", where=where)


def _find_spec_off(case: PoolCase) -> RuleMatch | None:
    if _lacks_lines(case):
        return RuleMatch(
            message="The server generates tokens, but its log has no line about drafts. It does not speculate, drafts "
            "nothing, or these lines were filtered out.",
            evidence=(f"{case.window.output_tokens:,} tokens, no line about drafts",),
            loss=find_losses(case).acceptance,
        )
    if case.window.counts_drafts is not False or not _generates(case.window):
        return None
    return RuleMatch(
        message="The servers generate tokens but have no draft counter: they do not speculate.",
        evidence=(f"{case.window.output_tokens:,} tokens, no counter of drafts",),
        loss=find_losses(case).acceptance,
    )


def _lacks_lines(case: PoolCase) -> bool:
    """Return whether a log, which counts no requests, lacks the line that each interval with a draft has."""
    is_log = case.window.counts_drafts is None and case.window.tells_acceptance and case.window.sums.finished is None
    drafts = case.asked.spec is not None or (case.good is not None and case.good.counters.spec.num_drafts > 0)
    made = case.window.counters.spec.num_drafts
    return is_log and drafts and not made and (case.window.output_tokens or 0) >= _MANY_TOKENS


def _find_partial_rollout(case: PoolCase) -> RuleMatch | None:
    without = [each for each in case.replicas.values() if _drafts_nothing(each)]
    drafting = [each for each in case.replicas.values() if each.counts_drafts and each not in without]
    if not without or not drafting:
        return None
    return RuleMatch(
        message=f"{len(without)} of {len(case.replicas)} servers of the pool do not speculate.",
        evidence=tuple(
            f"{each.instance} {'made no draft' if each.counts_drafts else 'has no counter of drafts'}"
            for each in without
        ),
        loss=_lose_beside(case.window, drafting),
        where=without[0].instance,
    )


def _drafts_nothing(window: Window) -> bool:
    if window.counters.spec.num_drafts or not _generates(window):
        return False
    few = window.sums.finished is not None and count_requests(window) < MIN_REQUESTS  # lookups may have found nothing
    return window.counts_drafts is False or bool(window.counts_drafts and not few)


def _find_rank_silent(case: PoolCase) -> RuleMatch | None:
    drafting = {each.instance for each in case.windows if each.counters.spec.num_drafts}
    silent = [
        each
        for each in case.windows
        if each.instance in drafting and _generates(each) and not each.counters.spec.num_drafts
    ]
    if not silent:
        return None
    return RuleMatch(
        message=f"Engine {silent[0].engine} of {silent[0].instance} makes no drafts, while its other engines do.",
        evidence=tuple(f"engine {each.engine}: {each.output_tokens:,} tokens, no draft" for each in silent),
        loss=_lose_beside(case.window, [each for each in case.windows if each.counters.spec.num_drafts]),
        where=silent[0].instance,
    )


def _find_drafts_stopped(case: PoolCase) -> RuleMatch | None:
    if not case.window.counts_drafts or not _drafts_nothing(case.window):
        return None
    return RuleMatch(
        message="The servers generate tokens but make no drafts.",
        evidence=(f"{case.window.output_tokens:,} tokens, no draft",),
        loss=find_losses(case).acceptance,
    )


def _find_schedule_zero(case: PoolCase) -> RuleMatch | None:
    stopped = _find_drafts_stopped(case)
    if stopped is None or case.asked.find_scheduled_k(case.window.batch) != 0:
        return None
    return RuleMatch(
        message=f"The schedule drafts nothing at {case.window.batch:.0f} running requests, as configured.",
        evidence=(*stopped.evidence, tell("running", case.window.batch)),
        loss=stopped.loss,
    )


def _find_schedule_ignored(case: PoolCase) -> RuleMatch | None:
    wanted, drafted = case.asked.find_scheduled_k(case.window.batch), case.window.mean_k
    if wanted is None or drafted is None or case.window.counters.spec.num_drafts < MIN_DRAFTS or drafted < wanted + 0.5:
        return None
    return RuleMatch(
        message=text_of("schedule-ignored", drafted=drafted, batch=case.window.batch, wanted=wanted),
        evidence=(tell("mean k", drafted, wanted, of="scheduled"), tell("running", case.window.batch)),
        loss=find_losses(case).machine,
    )


def _find_coverage_lost(case: PoolCase) -> RuleMatch | None:
    good, window = case.good, case.window
    if good is None or not window.counters.spec.num_drafts or not _generates(window) or _is_partial(case):
        return None
    if count_requests(window) < 2 * MIN_REQUESTS:  # one of a few that cannot be drafted is no change
        return None
    # The first token of an answer comes from prefill, without a draft: of short answers that is a lot.
    now, then = (each.coverage if each.decode_coverage is None else each.decode_coverage for each in (window, good))
    if not is_less(now, then, by=1 - _FEW_DRAFTS, error=case.error):
        return None
    where = find_only(case, lambda each: (each.coverage or 0.0) < _FEW_DRAFTS * (then or 0.0))
    only = f"On {where}, few" if where else f"Only {now:.0%}"
    return RuleMatch(
        message=f"{only} of the steps have a draft, but {then:.0%} had one in the measurement.",
        evidence=(tell("coverage", now, then), tell("mean k", window.mean_k, case.k, of="of")),
        loss=find_losses(case).acceptance,
        where=case.parts[where].instance if where else "",
    )


def _find_drafts_shortened(case: PoolCase) -> RuleMatch | None:
    window, k = case.window, case.k
    scheduled = case.asked.find_scheduled_k(window.batch)
    wanted = most = k if scheduled is None else scheduled
    if wanted and window.counters.spec.num_drafts:  # servers with another k shorten nothing
        wanted = sum(_own_k(each, wanted) * each.counters.spec.num_drafts for each in case.windows)
        wanted /= window.counters.spec.num_drafts
    if not wanted or window.mean_k is None or window.counters.spec.num_drafts < MIN_DRAFTS:
        return None
    usual = None if case.good is None else case.good.mean_k  # the same traffic was measured with drafts as short
    if window.mean_k >= _FEW_DRAFTS * min(wanted, usual or wanted):
        return None
    where = find_only(case, lambda each: (each.mean_k or wanted) < _FEW_DRAFTS * _own_k(each, most or wanted))
    on, named = (f"On {where}, a", case.parts[where]) if where else ("A", window)
    own = {_own_k(each, most or wanted) for each in ((named,) if where else case.windows)}
    told = " or ".join(f"{each:.3g}" for each in sorted(own))
    return RuleMatch(
        message=f"{on} draft has {named.mean_k:.1f} tokens on average, but {told} are configured.",
        evidence=(tell("mean k", named.mean_k, own.pop() if len(own) == 1 else wanted, of="configured"),),
        loss=find_losses(case).acceptance,
        where=case.parts[where].instance if where else "",
    )


def _own_k(window: Window, wanted: float) -> float:
    return min(wanted, count_drafted(window) or wanted)


def _is_partial(case: PoolCase) -> bool:
    """Return whether engines without any draft stand next to others that draft, which lowers coverage as well."""
    return any(not each.counters.spec.num_drafts and _generates(each) for each in case.windows)


def _lose_beside(pool: Window, good: Sequence[Window]) -> float | None:
    """Return what a pool loses in tokens per step compared with its servers that are as they should be."""
    mine, theirs = pool.tokens_per_step, reduce(Window.__add__, good).tokens_per_step
    return log(theirs / mine) if mine and theirs else None


RULES = (
    DiagnosisRule("no-traffic", _find_no_traffic),
    DiagnosisRule("asleep", _find_asleep),
    DiagnosisRule("spec-off", _find_spec_off),
    DiagnosisRule("partial-rollout", _find_partial_rollout),
    DiagnosisRule("rank-silent", _find_rank_silent),
    DiagnosisRule("drafts-stopped", _find_drafts_stopped),
    DiagnosisRule("schedule-zero", _find_schedule_zero),
    DiagnosisRule("schedule-ignored", _find_schedule_ignored),
    DiagnosisRule("coverage-lost", _find_coverage_lost),
    DiagnosisRule("drafts-shortened", _find_drafts_shortened),
)
