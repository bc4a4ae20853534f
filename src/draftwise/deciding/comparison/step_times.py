"""How long a decoding step of each arm takes, by the number of streams: what a server in production is held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftwise.core import Arm, Counters, Run, Timing, TurnRecord
from draftwise.core.grouping import group_by

__all__ = ["trace_step_times"]


def trace_step_times(run: Run) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Return streams and milliseconds of a step by arm, fewest streams first; arms of which none is known are left out.

    A step's time is seconds per token after the first, times tokens per step: sums over requests, not quantiles. What
    is drafted changes what a step gives, and load what it takes, so workloads and temperatures are pooled.
    """
    streams = {each.label: each.concurrency for each in run.conditions if each.concurrency is not None}
    timings = _group_timings(run)
    curves = {}
    for arm in run.plan.arms:
        mine = (turn for turn in run.turns if turn.arm == arm.name and turn.condition in streams)
        groups = group_by(lambda turn: streams[turn.condition], mine)
        curves[arm.name] = tuple(_trace(arm, groups, timings))
    return {name: curve for name, curve in curves.items() if curve}


def _group_timings(run: Run) -> Mapping[int, Sequence[Timing]]:
    """Return the timings of complete answers by turn."""
    whole = group_by(lambda answer: answer.turn, (answer for answer in run.answers if answer.error is None))
    return {turn: [answer.timing for answer in answers] for turn, answers in whole.items()}


def _trace(
    arm: Arm, groups: Mapping[int, Sequence[TurnRecord]], timings: Mapping[int, Sequence[Timing]]
) -> Iterator[tuple[float, float]]:
    for count, turns in sorted(groups.items()):
        known = [timing for turn in turns for timing in timings.get(turn.turn, ()) if timing.num_tokens > 1]
        tokens = sum(timing.num_tokens - 1 for timing in known)
        per_step = 1.0 if arm.spec is None else Counters.total(turn.counters for turn in turns).tokens_per_step
        seconds = sum(timing.chunks[-1][0] - timing.chunks[0][0] for timing in known)
        if tokens and per_step is not None and seconds > 0:
            yield float(count), 1000 * per_step * seconds / tokens
