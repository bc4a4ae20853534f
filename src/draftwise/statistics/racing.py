"""Decides which candidates leave a race on one workload and load, to give others their time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from draftwise.statistics.estimate import upper_student_quantile

RACE_LOOKS = (6, 8, 11, 15, 20, 27, 36, 48, 64, 86)
"""Numbers of prompts at which candidates are evaluated."""
_NO_GAIN, _BEHIND, _PAYS = 0.005, 0.0025, 0.0005
"""One-sided errors for "no gain", "behind the best" and "surely pays" (over all cells)."""
_POWER_Z = 0.84
_LEAST_LEAD = 0.05
"""Smallest log lead for which further prompts are spent."""
_HALVED_FROM = 11
"""Prompts after which the worse half may leave, if time allows: by then, most candidates without a gain have shown it
(benchmarks/cpu/decision_simulation.py: 2 more of 33 cells answered than with 6)."""
_SPARED = 2
"""Candidates that always stay, however short the time."""
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
    """It was in the worse half when time ran short. This is not a verdict."""


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
    the leader lacks time for the prompts that it needs, the worse half of the rest leaves.

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
    left = sorted((name for name in logs if name not in gone), key=lambda each: -means[each])
    asked, expected = len(logs[best]), len(logs[best]) + blocks_left
    is_time = asked >= _HALVED_FROM or expected < _HALVED_FROM
    if len(left) > _SPARED and is_time and expected < _count_needed(logs[best], bar):
        worse = left[max(_SPARED, (len(left) + 1) // 2) :]
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
    """Return whether a candidate pays so surely that its time is better spent on others."""
    mean, error, degrees = _summarise(list(logs.values()))
    return mean - upper_student_quantile(_PAYS / family, degrees) * error > math.log1p(margin)


def _leave(
    name: str, reason: LeaveReason, mine: Mapping[Hashable, float], *, best: str = "", lead: float = 0.0
) -> Leaver:
    ratio = math.exp(fmean(mine.values()))
    return Leaver(candidate=name, reason=reason, ratio=ratio, count=len(mine), best=best, lead=math.exp(lead))


def _summarise(values: list[float]) -> tuple[float, float, float]:
    """Return mean, standard error and degrees of freedom."""
    return fmean(values), max(stdev(values), _NOTHING) / math.sqrt(len(values)), len(values) - 1


def _count_needed(logs: Mapping[Hashable, float], bar: float) -> float:
    """Return the prompts that show the leader's gain 8 times in 10, among ten candidates."""
    reach = upper_student_quantile(_BEHIND, 30) + _POWER_Z
    return (reach * stdev(logs.values()) / max(fmean(logs.values()) - bar, _LEAST_LEAD)) ** 2
