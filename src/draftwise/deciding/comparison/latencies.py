"""Computes latency distributions, SLO attainment, step times, and output under load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from draftwise.core import Answer, Arm, Counters, Run, Timing, TurnRecord
from draftwise.core.documents import json_form
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.thresholds import Thresholds

QUANTILES = (50, 90, 95, 99)


def name_quantiles(values: Sequence[float], quantiles: Sequence[int]) -> dict[str, float]:
    """Return percentiles by name (`p50`, ...); empty without values."""
    return dict(zip((f"p{q}" for q in quantiles), values, strict=False))


def _token_gaps(timing: Timing) -> tuple[float, ...]:
    """Return, for every token after the first chunk, its share of the wait for the chunk it came in."""
    shares = (((b - a) / count, count) for (a, _), (b, count) in pairwise(timing.chunks) if count)
    return tuple(chain.from_iterable((share,) * count for share, count in shares))


LATENCIES: Mapping[str, Callable[[Timing], Sequence[float | None]]] = {
    "ttft": lambda timing: (timing.ttft_s,),
    "tpot": lambda timing: (timing.tpot_s,),
    "itl": lambda timing: timing.itl_s,
    "e2e": lambda timing: (timing.e2e_s,),
}
"""Latencies of a request in seconds, by their usual names; None if the answer is too short."""
_MORE: Mapping[str, Callable[[Timing], Sequence[float | None]]] = {
    "token_itl": _token_gaps,
    "send_lag": lambda timing: (timing.send_lag_s,) if timing.intended is not None else (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Percentiles in milliseconds, over all measured requests of the comparison's repetitions."""

    workload: str
    condition: str
    arm: str
    num_requests: int
    num_failed: int
    """Requests without a complete answer. They have no latency and miss every SLO."""
    percentiles_ms: Mapping[str, tuple[float, ...]] = field(
        metadata=json_form(
            wire=Mapping[str, Mapping[str, float]],
            to_wire=lambda rows: {name: name_quantiles(values, QUANTILES) for name, values in rows.items()},
        )
    )
    """Values in the order of QUANTILES, empty without readings: `ttft`; `tpot` (as in vLLM: last token minus first,
    over tokens - 1); `itl` (between chunks, as in vLLM and its benchmark); `token_itl` (a chunk's wait divided among
    its tokens: comparable if chunk sizes differ); `e2e`; `send_lag` (actual minus intended send time, open loops only).
    In an open loop, ttft and e2e count from the intended time."""
    tokens_per_s: float
    """Output tokens per second of one stream: total tokens over total request seconds."""
    throughput: float | None
    """The server's output tokens per second while the load was complete."""
    goodput: float | None
    """Share of requests within the operator's SLO; None without an SLO."""
    goodput_per_s: float | None
    """Requests within the SLO per second of load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOutput:
    """A server's output over a period."""

    tokens: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def summarise_latencies(run: Run, cells: Iterable[Cell], thresholds: Thresholds) -> list[Latencies]:
    """Return latencies per arm, workload and condition with completed turns.

    Args:
        cells: cells with the comparisons' repetitions.
    """
    counted = {(each.workload, each.condition.label, each.candidate): each.repetitions for each in cells}
    rows = []
    for place, turns in _group_turns(run).items():
        kept = [turn for repeat, turn in turns if place not in counted or repeat in counted[place]]
        if any(answer.measured and answer.error is None for turn in kept for answer in turn):
            rows.append(_row(place, kept, thresholds))
    return rows


def _group_turns(run: Run) -> dict[tuple[str, str, str], list[tuple[int, list[Answer]]]]:
    """Return repetition and answers of every finished turn, by workload, condition and arm, in the plan's order."""
    by_turn = group_by(lambda answer: answer.turn, run.answers)
    order = [
        (workload.name, condition.label, arm.name)
        for workload in run.plan.workloads
        for condition in run.conditions
        for arm in run.plan.arms
    ]
    found: dict[tuple[str, str, str], list[tuple[int, list[Answer]]]] = {place: [] for place in order}
    for turn in run.turns:
        found[turn.workload, turn.condition, turn.arm].append((turn.repeat, by_turn.get(turn.turn, [])))
    return found


def _row(place: tuple[str, str, str], turns: Sequence[Sequence[Answer]], thresholds: Thresholds) -> Latencies:
    workload, condition, arm = place
    asked = [answer for turn in turns for answer in turn if answer.measured]
    timings = [answer.timing for answer in asked if answer.error is None]
    loads = [load for turn in turns if (load := measure_output(turn)) is not None]
    seconds = sum(load.seconds for load in loads)
    good = sum(keeps_promise(answer, thresholds) for answer in asked) if thresholds.has_slo else None
    return Latencies(
        workload=workload,
        condition=condition,
        arm=arm,
        num_requests=len(asked),
        num_failed=len(asked) - len(timings),
        percentiles_ms={name: _percentiles(timings, read) for name, read in {**LATENCIES, **_MORE}.items()},
        tokens_per_s=sum(timing.num_tokens for timing in timings) / sum(timing.e2e_s for timing in timings),
        throughput=sum(load.tokens for load in loads) / seconds if seconds else None,
        goodput=None if good is None else good / len(asked),
        goodput_per_s=None if good is None or not seconds else good / seconds,
    )


def _percentiles(timings: Sequence[Timing], read: Callable[[Timing], Sequence[float | None]]) -> tuple[float, ...]:
    values = list(_known(timings, read))
    return tuple(float(each) for each in np.percentile(values, QUANTILES)) if values else ()


def _known(timings: Sequence[Timing], read: Callable[[Timing], Sequence[float | None]]) -> Iterator[float]:
    return (1e3 * value for value in chain.from_iterable(map(read, timings)) if value is not None)


def measure_output(turn: Sequence[Answer]) -> ServerOutput | None:
    """Return a server's output in a turn while the load was complete.

    The load is complete from the first measured request's send time to the last one's end. Tokens of background
    requests within that time count, too. None without a measured request, or if it took no time.
    """
    measured = [answer.timing for answer in turn if answer.measured]
    if not measured:
        return None
    begin, end = min(timing.sent for timing in measured), max(timing.finished for timing in measured)
    if end <= begin:
        return None
    tokens = sum(count for answer in turn for time, count in answer.timing.chunks if begin < time <= end)
    return ServerOutput(tokens=tokens, seconds=end - begin)


def keeps_promise(answer: Answer, thresholds: Thresholds) -> bool:
    """Return whether a request met the operator's SLO. A failed request never does."""
    if answer.error is not None:
        return False
    timing = answer.timing
    pairs = (
        (timing.ttft_s, thresholds.slo_ttft_s),
        (timing.tpot_s, thresholds.slo_tpot_s),
        (timing.e2e_s, thresholds.slo_e2e_s),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


def trace_step_times(run: Run) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Return (streams, milliseconds per step) by arm, fewest streams first. Leaves out arms without known steps.

    Step time is seconds per token after the first, times tokens per step, from sums over requests. Workloads and
    temperatures are pooled: drafts change a step's yield, and load its duration.
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
        counters = Counters.total(turn.counters for turn in turns)
        firsts = sum(len(timings.get(turn.turn, ())) for turn in turns)
        per_step = 1.0 if arm.spec is None else counters.find_tokens_per_decode_step(firsts) or counters.tokens_per_step
        seconds = sum(timing.chunks[-1][0] - timing.chunks[0][0] for timing in known)
        if tokens and per_step is not None and seconds > 0:
            yield float(count), 1000 * per_step * seconds / tokens
