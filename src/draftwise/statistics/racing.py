"""Decides which candidates on one workload and load leave a race, so that others get the time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from draftwise.statistics.estimate import upper_student_quantile

RACE_LOOKS = (6, 8, 11, 15, 20, 27, 36, 48, 64, 86)
"""Prompts at which candidates are looked at."""
_NO_GAIN, _BEHIND, _PAYS = 0.005, 0.0025, 0.0005
"""One-sided errors: of no gain worth it, of being behind the best one, and of surely paying (over all cells)."""
_POWER_Z = 0.84
_LEAST_LEAD = 0.05
"""Smallest lead (a logarithm) before what must be cleared, that prompts are asked for to show."""
_HALVED_FROM = 11
"""Prompts from which the worse half is left out, where the time has room for them: until then most candidates that do
not gain have shown it (benchmarks/cpu/decision_simulation.py: 2 more of 33 cells answered than from 6)."""
_SPARED = 2
"""Candidates that are left whatever the time."""
_NOTHING = 1e-6
_FEWEST = 6
"""Prompts that two candidates are compared on."""

Logs = Mapping[str, Mapping[Hashable, float]]
"""Logarithms of each prompt's ratio, by candidate."""


class LeaveReason(StrEnum):
    """Why a candidate leaves."""

    NO_GAIN = "no-gain"
    """No gain worth a change is left in its interval."""
    BEHIND = "behind"
    """Another one is faster, prompt by prompt."""
    PAYS = "pays"
    """It surely pays, and another one is ahead: its prompts serve others better."""
    NO_TIME = "no-time"
    """It was in the worse half when time was short: no claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A candidate that leaves the race."""

    candidate: str
    reason: LeaveReason
    ratio: float
    """So far."""
    count: int
    """Prompts that it was measured on."""
    best: str = ""
    """Who was ahead; empty for nobody."""
    lead: float = 1.0
    """How many times as fast that one is, prompt by prompt."""


def find_leavers(logs: Logs, *, margin: float, blocks_left: float, family: int) -> list[Leaver]:
    """Return the candidates to stop measuring, going by what was measured so far.

    Those with no gain worth it, those that are surely behind the best one (two candidates gain on the same prompts, so
    that their difference is known better than either), and those that surely pay without being the best; then, while
    the leader would not get the prompts that it needs, the worse half of the rest.

    Args:
        logs: the candidates' that are still in the race, on one workload under one load; at least six prompts each.
        margin: a smaller gain is not worth a change.
        family: cells of the run.
        blocks_left: prompts that the time that is left has room for here, with all of them.
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
    """Return how many times as fast another candidate is, and on how many prompts of both; None where that is chance.

    Two candidates gain on the same prompts, so that their difference is known better than either.

    Args:
        is_shown: whether an earlier look has shown that there is a lead: what has come since need only agree.
    """
    common = [best[prompt] - mine[prompt] for prompt in mine if prompt in best]
    if len(common) < _FEWEST:
        return None
    lead, error, degrees = _summarise(common)
    least = 0.0 if is_shown else upper_student_quantile(_BEHIND, degrees) * error
    return (math.exp(lead), len(common)) if lead > least else None


def leads_surely(logs: Mapping[Hashable, float], *, margin: float, family: int) -> bool:
    """Return whether a candidate pays so surely that its prompts serve others better."""
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
