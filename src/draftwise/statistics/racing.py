"""Decides which candidates leave a race on one workload and load, to give others their time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from draftwise.statistics.estimate import upper_student_quantile
from draftwise.statistics.harm import find_bar

RACE_LOOKS = (6, 8, 11, 15, 20, 27, 36, 48, 64, 86)
"""Numbers of prompts at which candidates are evaluated."""
_NO_GAIN, _BEHIND, _PAYS = 0.0025, 0.0025, 0.0005
"""One-sided errors for "no gain", "behind the best" and "surely pays" (over all cells)."""
_POWER_Z = 0.84
_LEAST_LEAD = 0.05
"""Smallest log lead for which further prompts are spent."""
_HALVED_FROM = 11
"""Prompts after which the worse half may leave, if time allows: by then, most candidates without a gain have shown it
(benchmarks/cpu/decision_simulation.py: 2 more of 33 cells answered than with 6)."""
_SPARED = 2
"""Candidates that stay when the worse half leaves."""
_NOTHING = 1e-6
_FEWEST = 6
"""Minimum number of prompts to compare two candidates."""

Logs = Mapping[str, Mapping[Hashable, float]]
"""Log ratio of each prompt, by candidate."""


class LeaveReason(StrEnum):
    """Why a candidate leaves the race."""

    NO_GAIN = "no-gain"
    """Its interval excludes a gain worth a change."""
    BEHIND = "behind"
    """Another candidate is faster on the same prompts."""
    PAYS = "pays"
    """It surely pays, but another candidate is ahead: its time is better spent on others."""
    NO_TIME = "no-time"
    """It needs more prompts than there is time for, or they go to others. This is not a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A candidate that leaves the race."""

    candidate: str
    reason: LeaveReason
    ratio: float
    """Its ratio so far."""
    count: int
    """Number of prompts measured."""
    best: str = ""
    """Candidate that was ahead; empty without one."""
    lead: float = 1.0
    """Speed of that candidate over this one, on the same prompts."""


def find_leavers(logs: Logs, *, margin: float, blocks_left: float, family: int) -> list[Leaver]:
    """Return the candidates to stop measuring, given the measurements so far.

    These are candidates without a gain worth a change, those surely behind the best (two candidates share prompts, so
    their difference is known better than either ratio), and those that surely pay without being the best. Then, while
    a leader that gains lacks time for the prompts that it needs, the worse half of the rest leaves; without such a
    leader, those leave for which the time would not suffice even if only two stayed.

    Args:
        logs: log ratios of the candidates still in the race on one workload and load, with at least six prompts each.
        margin: smaller gains do not justify a change.
        family: number of cells in the run.
        blocks_left: prompts for which the remaining time suffices here, with all candidates.
    """
    means = {name: fmean(mine.values()) for name, mine in logs.items()}
    bar = math.log1p(margin)
    best = max(means, key=lambda each: means[each])
    found: list[Leaver] = []
    for name, mine in logs.items():
        _, error, degrees = _summarise(list(mine.values()))
        if means[name] + upper_student_quantile(_NO_GAIN, degrees) * error < bar:
            found.append(_leave(name, LeaveReason.NO_GAIN, mine))
        elif name != best and (lead := find_lead(logs[best], mine)) is not None:
            found.append(_leave(name, LeaveReason.BEHIND, mine, best=best, lead=math.log(lead[0])))
        elif name != best and leads_surely(mine, margin=margin, family=family):
            found.append(_leave(name, LeaveReason.PAYS, mine, best=best, lead=means[best] - means[name]))
    gone = {each.candidate for each in found}
    asked, expected = len(logs[best]), len(logs[best]) + blocks_left
    is_time = asked >= _HALVED_FROM or expected < _HALVED_FROM
    needed = {name: _count_needed(mine, logs[best], bar) for name, mine in logs.items() if name not in gone}
    if len(needed) > _SPARED and is_time and expected < max(needed.values()):
        left = sorted(needed, key=lambda each: -means[each])
        if expected < needed.get(best, 0.0) and means[best] > bar + _LEAST_LEAD:
            worse = left[max(_SPARED, (len(left) + 1) // 2) :]
        else:
            reach = asked + blocks_left * len(needed) / _SPARED
            worse = [each for each in left[1:] if needed[each] > reach]
        found += [
            _leave(name, LeaveReason.NO_TIME, logs[name], best=best, lead=means[best] - means[name]) for name in worse
        ]
    return found


def find_lead(
    best: Mapping[Hashable, float], mine: Mapping[Hashable, float], *, is_shown: bool = False
) -> tuple[float, int] | None:
    """Return another candidate's speed over this one's, and the number of shared prompts; None if it may be chance.

    Two candidates share prompts, so their difference is known better than either ratio.

    Args:
        is_shown: whether an earlier look has shown the lead. Newer prompts then need only agree.
    """
    common = [best[prompt] - mine[prompt] for prompt in mine if prompt in best]
    if len(common) < _FEWEST:
        return None
    lead, error, degrees = _summarise(common)
    least = 0.0 if is_shown else upper_student_quantile(_BEHIND, degrees) * error
    return (math.exp(lead), len(common)) if lead > least else None


def leads_surely(logs: Mapping[Hashable, float], *, margin: float, family: int) -> bool:
    """Return whether a candidate pays so surely that its time is better spent on others, even if its few prompts left
    out a kind that loses."""
    mean, error, degrees = _summarise(list(logs.values()))
    return mean - upper_student_quantile(_PAYS / family, degrees) * error > math.log(find_bar(len(logs), margin))


def _leave(
    name: str, reason: LeaveReason, mine: Mapping[Hashable, float], *, best: str = "", lead: float = 0.0
) -> Leaver:
    ratio = math.exp(fmean(mine.values()))
    return Leaver(candidate=name, reason=reason, ratio=ratio, count=len(mine), best=best, lead=math.exp(lead))


def _summarise(values: list[float]) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom."""
    return fmean(values), max(stdev(values), _NOTHING) / math.sqrt(len(values)), len(values) - 1


def _count_needed(mine: Mapping[Hashable, float], best: Mapping[Hashable, float], bar: float) -> float:
    """Return the number of prompts that decide on a candidate 8 times in 10, among ten candidates: that the leader
    gains, or that another one has no gain or is behind. Another one's difference may be a standard error larger than it
    looks, and counts as that."""
    logs = list(mine.values())
    if mine is best:
        return _count_for(_BEHIND, logs, fmean(logs) - bar)
    luck = stdev(logs) / math.sqrt(len(logs))
    found = _count_for(_NO_GAIN if fmean(logs) < bar else _BEHIND, logs, abs(fmean(logs) - bar) + luck)
    lead = [best[prompt] - mine[prompt] for prompt in mine if prompt in best]
    if len(lead) >= _FEWEST:
        found = min(found, _count_for(_BEHIND, lead, fmean(lead) + stdev(lead) / math.sqrt(len(lead))))
    return found


def _count_for(error: float, values: list[float], away: float) -> float:
    return ((upper_student_quantile(error, 30) + _POWER_Z) * stdev(values) / max(away, _LEAST_LEAD)) ** 2
