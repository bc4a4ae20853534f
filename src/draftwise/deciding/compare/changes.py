"""Computes per arm how much faster or slower the second measurement is, with intervals where possible."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftwise.core import Answer, Interval, Timing
from draftwise.deciding.comparison.latencies import LATENCIES
from draftwise.deciding.interchange import ArmResults
from draftwise.statistics import CONFIDENCE, Array, Design, prompt_ratio, student_quantile

TOKENS_PER_S = "tokens/s"
"""The only reading that is better when larger."""
QUANTILES = (50, 90, 99)
_READ: dict[str, Callable[[Timing], Sequence[float | None]]] = {
    TOKENS_PER_S: lambda timing: (timing.tokens_per_s,),
    **LATENCIES,
}
_FEWEST = 3
"""Minimum number of requests on each side for an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingChange:
    """One reading of one arm: after over before."""

    reading: str
    """`tokens/s` of a request (larger is better), `ttft`, `tpot`, `itl` or `e2e` (smaller is better)."""
    ratio: Interval | None
    """Ratio of (geometric) mean requests, after over before. None: only aggregates are known, or definitions differ."""
    how: str
    """Source of the ratio: `paired`, `unpaired`, `means` (aggregates), or the reason why there is no ratio."""
    before: dict[float, float] = field(default_factory=dict)
    """Values by percentile, in seconds, or in tokens/s for `tokens/s`."""
    after: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """One arm on one workload under one condition, compared in both measurements."""

    workload: str
    condition: str
    arm: str
    num_requests: tuple[int, int]
    num_failed: tuple[int, int]
    changes: tuple[ReadingChange, ...]
    throughput: tuple[float | None, float | None]
    """Output tokens per second of the server."""
    acceptance_length: tuple[float | None, float | None]


def compare_cells(before: ArmResults, after: ArmResults) -> CellChange:
    """Return the change of every reading that both cells have."""
    lengths = [None if cell.spec is None else cell.spec.acceptance_length for cell in (before, after)]
    return CellChange(
        workload=after.workload,
        condition=after.condition,
        arm=after.arm,
        num_requests=(before.num_requests, after.num_requests),
        num_failed=(before.num_failed, after.num_failed),
        changes=tuple(_find_changes(before, after)),
        throughput=(before.output_tokens_per_s, after.output_tokens_per_s),
        acceptance_length=(lengths[0], lengths[1]),
    )


def _find_changes(before: ArmResults, after: ArmResults) -> Iterator[ReadingChange]:
    """Yield the change of every reading that both cells have, from answers or else from aggregates.

    Tokens per second follow from any answers; a latency only from tools that kept it.
    """
    for reading in _READ:
        if before.answers and after.answers:
            if reading == TOKENS_PER_S or (reading in before.readings and reading in after.readings):
                yield _from_answers(reading, before, after)
        elif reading in before.aggregates or reading in after.aggregates:
            yield _from_aggregates(reading, before, after)


def _from_answers(reading: str, before: ArmResults, after: ArmResults) -> ReadingChange:
    old, new = _good(before), _good(after)
    ratio, how = _paired(reading, old, new)
    if ratio is None:
        ratio, how = _unpaired(_logs(reading, old), _logs(reading, new)), "unpaired"
    else:
        shared = {each.prompt_id for each in old} & {each.prompt_id for each in new}
        old, new = ([each for each in side if each.prompt_id in shared] for side in (old, new))
    return ReadingChange(
        reading=reading, ratio=ratio, how=how, before=_percentiles(reading, old), after=_percentiles(reading, new)
    )


def _good(cell: ArmResults) -> list[Answer]:
    return [answer for answer in cell.answers if answer.error is None and answer.timing.chunks]


def _paired(reading: str, old: Sequence[Answer], new: Sequence[Answer]) -> tuple[Interval | None, str]:
    """Return the ratio over the requests that both sides asked: the same prompt in the same place of the run."""
    left, right = (_by_occurrence(side) for side in (old, new))
    keys = [key for key in left if key in right]
    if len({prompt for prompt, *_ in keys}) < _FEWEST or len(keys) < min(len(left), len(right)) / 2:
        return None, ""
    # With a single turn its shared variance cannot be estimated: every request then counts as independent.
    turns = {key: left[key].turn for key in keys}
    single = len(set(turns.values())) == 1
    pairs: list[tuple[Hashable, Hashable]] = [(key[0], key if single else turns[key]) for key in keys]
    values = [np.array([_mean(reading, side[key]) for key in keys]) for side in (right, left)]
    estimate = prompt_ratio(values[0], values[1], Design.of(pairs))
    return (None, "") if estimate is None else (estimate.interval(), "paired")


def _by_occurrence(answers: Sequence[Answer]) -> dict[tuple[str, int, int], Answer]:
    """Return the answers by prompt, repetition, and how often the prompt came before in that repetition."""
    seen: Counter[tuple[str, int]] = Counter()
    found = {}
    for answer in sorted(answers, key=lambda each: (each.turn, each.copy)):
        asked = (answer.prompt_id, answer.repeat)
        found[*asked, seen[asked]] = answer
        seen[asked] += 1
    return found


def _mean(reading: str, answer: Answer) -> float:
    values = [value for value in _READ[reading](answer.timing) if value is not None]
    return sum(values) / len(values) if values else math.nan


def _logs(reading: str, answers: Sequence[Answer]) -> Array:
    values = np.array([_mean(reading, answer) for answer in answers])
    return np.asarray(np.log(values[np.isfinite(values) & (values > 0)]))


def _unpaired(before: Array, after: Array) -> Interval | None:
    """Return the ratio of geometric means (Welch's interval on the logarithms), requests taken as independent."""
    if min(len(before), len(after)) < _FEWEST:
        return None
    variances = [float(side.var(ddof=1)) / len(side) for side in (before, after)]
    log, total = float(after.mean() - before.mean()), sum(variances)
    degrees = math.inf
    if total:
        parts = (v**2 / (len(side) - 1) for v, side in zip(variances, (before, after), strict=True))
        degrees = total**2 / sum(parts)
    reach = student_quantile((1 + CONFIDENCE) / 2, max(2, int(min(degrees, 10_000)))) * math.sqrt(total)
    return Interval(value=math.exp(log), low=math.exp(log - reach), high=math.exp(log + reach))


def _percentiles(reading: str, answers: Sequence[Answer]) -> dict[float, float]:
    values = [value for answer in answers for value in _READ[reading](answer.timing) if value is not None]
    return {float(q): float(np.percentile(values, q)) for q in QUANTILES} if values else {}


def _from_aggregates(reading: str, before: ArmResults, after: ArmResults) -> ReadingChange:
    """Return what two aggregates allow: percentiles side by side, and no ratio unless both are defined alike."""
    old, new = (cell.aggregates.get(reading) for cell in (before, after))
    sides = [
        dict(each.percentiles) if each else _percentiles(reading, _good(cell))
        for each, cell in ((old, before), (new, after))
    ]
    if old is None or new is None:
        how = "only aggregates on one side"
    elif old.definition != new.definition:
        how = f"not comparable: {old.definition} / {new.definition}"
    elif not old.mean or not new.mean:
        how = "no means"
    else:
        value = new.mean / old.mean
        unknown = Interval(value=value, low=0.0, high=math.inf)
        return ReadingChange(reading=reading, ratio=unknown, how="means", before=sides[0], after=sides[1])
    return ReadingChange(reading=reading, ratio=None, how=how, before=sides[0], after=sides[1])
