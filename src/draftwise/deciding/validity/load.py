"""Whether each load was what its name says: it was reached, and the servers carried it, from the first turn on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from draftwise.core import Answer, Condition, Finding, OpenLoop, Run
from draftwise.core.grouping import group_by
from draftwise.deciding.thresholds import Thresholds

__all__ = ["check_load"]


_FEWEST_TURNS = 8


def check_load(run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds) -> list[Finding]:
    """Return where a load was not what its name says, arm by arm and condition by condition."""
    return [*_failures(run), *_loads(run, thresholds), *_noise(run, of_baseline, thresholds)]


def _loads(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    for arm in run.plan.arms:
        for condition in run.conditions:
            turns = _group_by_turn(run, arm.name, condition)
            if turns and condition.concurrency is not None and condition.concurrency > 1:
                yield from _not_reached(arm.name, condition, condition.concurrency, turns, thresholds)
                yield from _queued(arm.name, condition, condition.concurrency, turns, thresholds)
            elif turns and isinstance(condition.load, OpenLoop) and condition.load.rate_per_s is not None:
                yield from _overload(arm.name, condition, turns, thresholds)
        yield from _short_warm_up(run, arm.name, thresholds)


def _group_by_turn(run: Run, arm: str, condition: Condition) -> list[list[Answer]]:
    turns = {turn.turn for turn in run.turns if (turn.arm, turn.condition) == (arm, condition.label)}
    by_turn = group_by(lambda answer: answer.turn, (answer for answer in run.answers if answer.turn in turns))
    return [answers for answers in by_turn.values() if any(each.measured for each in answers)]


def _failures(run: Run) -> Iterator[Finding]:
    asked = [answer for answer in run.answers if answer.measured]
    failed = [answer for answer in asked if answer.error is not None]
    if not failed:
        return
    first = failed[0]
    why = f"{first.arm}, {first.workload} prompt {first.prompt_id!r}: {(first.error or '').rstrip('.')}."
    text = f"{len(failed)} of {len(asked)} requests failed and are left out; the first: {why}"
    yield Finding.warning("failed-requests", text)


def _not_reached(
    arm: str, condition: Condition, wanted: int, turns: Sequence[Sequence[Answer]], thresholds: Thresholds
) -> Iterator[Finding]:
    """The requests that were really in flight while measured ones were."""
    reached = []
    for answers in turns:
        measured = [each.timing for each in answers if each.measured]
        begin, end = min(each.sent for each in measured), max(each.finished for each in measured)
        reached.append(_count_in_flight(answers, begin, end))
    if (typical := median(reached)) < wanted * thresholds.load_reached:
        text = f"{arm} had {typical:.1f} requests in flight on average at {condition.label}: the load was not reached."
        yield Finding.warning(
            "load-not-reached", text, fix="Give the workload more prompts, or the load generator more processes."
        )


def _queued(
    arm: str, condition: Condition, wanted: int, turns: Sequence[Sequence[Answer]], thresholds: Thresholds
) -> Iterator[Finding]:
    """Requests that waited in the server: answers are long, and yet never all streams were being answered."""
    most = max(_count_most_decoding(answers) for answers in turns)
    answers = [each for turn in turns for each in turn if each.measured and each.error is None]
    timings = [each.timing for each in answers if each.timing.e2e_s > 0]
    waiting = median([(timing.ttft_s or 0) / timing.e2e_s for timing in timings] or [0.0])
    if most and most < wanted * thresholds.load_reached and waiting > (1 - most / wanted) / 2:
        text = (
            f"{arm} never wrote more than {most} of {wanted} answers at a time, and its requests spent "
            f"{waiting:.0%} of their time before the first token"
        )
        fix = "They wait for a place (max_num_seqs), for KV pages, or for long prompts: that load measures the queue."
        yield Finding.warning("server-queues", f"{text}.", where=condition.label, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Third:
    """A third of the arrivals of all turns under an open loop."""

    in_flight: tuple[float, ...]
    """Turn by turn."""
    e2e_s: float

    @property
    def mean(self) -> float:
        """Requests in flight, over all turns."""
        return sum(self.in_flight) / len(self.in_flight)


def _overload(
    arm: str, condition: Condition, turns: Sequence[Sequence[Answer]], thresholds: Thresholds
) -> Iterator[Finding]:
    """Arrivals faster than answers: the queue grows for as long as they go on, and latency with it.

    Asked of all thirds and of most turns, as a queue that is merely busy grows and shrinks: with Poisson arrivals at
    0.87 of what two places can do, 2 % of runs of two turns look like this; at 1.3 times that, 93 % do.
    """
    first, second, last = (_third(turns, number) for number in range(3))
    factor = 1 + thresholds.queue_growth
    grows = second.mean > first.mean * factor and last.mean > max(second.mean * factor, second.mean + 2)
    turns_growing = sum(after > before for before, after in zip(second.in_flight, last.in_flight, strict=True))
    if grows and turns_growing >= 0.75 * len(turns) and last.e2e_s > second.e2e_s * factor:
        text = (
            f"{arm} cannot keep up with {condition.label}: {last.mean:.1f} requests in flight in the last third of a "
            f"turn, {second.mean:.1f} in the middle one; they take {last.e2e_s:.2f} s, there {second.e2e_s:.2f} s"
        )
        fix = "Such latencies depend on how long the turn was: compare at a lower rate."
        yield Finding.warning("overload", f"{text}.", where=condition.label, fix=fix)


def _third(turns: Sequence[Sequence[Answer]], number: int) -> _Third:
    in_flight, seconds = [], []
    for answers in turns:
        # Until the last measured one has come, no other request is sent.
        measured = [each for each in answers if each.measured]
        starts = [each.timing.start for each in measured]
        width = (max(starts) - min(starts)) / 3
        low, high = min(starts) + number * width, min(starts) + (number + 1) * width
        in_flight.append(_count_in_flight(measured, low, high))
        seconds += [each.timing.e2e_s for each in measured if low <= each.timing.start <= high and each.error is None]
    return _Third(in_flight=tuple(in_flight), e2e_s=sum(seconds) / max(1, len(seconds)))


def _short_warm_up(run: Run, arm: str, thresholds: Thresholds) -> Iterator[Finding]:
    """First turns that are slower than the rest of the first repetition, beside the same prompts in later ones."""
    slowness = _compare_first_repetition(run, arm)
    quarter = len(slowness) // 4
    if len(slowness) < _FEWEST_TURNS:
        return
    first, rest = median(slowness[:quarter]), median(slowness[quarter:])
    text = (
        f"the first {quarter} turns of {arm} took {first:.2f}x the time that the same prompts took later, the rest "
        f"of the first repetition {rest:.2f}x"
    )
    fix = "Discard more requests (--warmup)."
    if first > rest * (1 + thresholds.cold_far):
        yield Finding.warning("server-cold", f"{text}: it was still starting.", where=arm, fix=fix)
    elif first > rest * (1 + thresholds.cold_start):
        yield Finding.warning("warm-up-short", f"{text}: it was not warm yet.", where=arm, fix=fix)


def _compare_first_repetition(run: Run, arm: str) -> list[float]:
    """Return, turn by turn of the first repetition, the seconds per token over those of the same prompts later."""
    first: dict[int, list[tuple[tuple[str, str, str], float]]] = {}
    later: dict[tuple[str, str, str], list[float]] = {}
    for answer in run.answers:
        pace = _find_pace_s(answer)
        if answer.arm == arm and answer.measured and answer.error is None and pace is not None:
            unit = (answer.workload, answer.condition, answer.prompt_id)
            if answer.repeat == 1:
                first.setdefault(answer.turn, []).append((unit, pace))
            else:
                later.setdefault(unit, []).append(pace)
    ratios = ([pace / median(later[unit]) for unit, pace in first[turn] if unit in later] for turn in sorted(first))
    return [median(each) for each in ratios if each]


def _noise(run: Run, of_baseline: Iterable[Answer], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a baseline whose times for one and the same request vary between repetitions; closed loops only.

    In an open loop other requests arrive beside it each time. Under a load a prompt is answered many times in a turn,
    beside others each time: what counts is the typical time in each turn.
    """
    closed = {each.label for each in run.conditions if each.concurrency is not None}
    seconds: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for answer in of_baseline:
        if answer.condition in closed and (pace := _find_pace_s(answer)) is not None:
            turns = seconds.setdefault((answer.workload, answer.condition, answer.prompt_id), {})
            turns.setdefault(answer.turn, []).append(pace)
    typical = [[median(each) for each in turns.values()] for turns in seconds.values()]
    spread = median([(max(each) - min(each)) / median(each) for each in typical] or [0.0])
    if spread > thresholds.noise:
        text = f"the baseline server's time for one and the same prompt varies by {spread:.0%}: the machine is busy."
        yield Finding.warning("noisy-machine", text, fix="Stop what else runs there and measure again.")


def _find_pace_s(answer: Answer) -> float | None:
    """Return the end-to-end seconds per output token of an answer, None where it took none of either."""
    tokens = answer.timing.num_tokens
    return answer.timing.e2e_s / tokens if tokens and answer.timing.e2e_s > 0 else None


def _count_in_flight(answers: Sequence[Answer], begin: float, end: float) -> float:
    """Return how many requests were in flight on average between two times."""
    spans = np.array([(answer.timing.sent, answer.timing.finished) for answer in answers]).reshape(-1, 2)
    overlap = np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin)
    return float(np.maximum(overlap, 0).sum() / (end - begin)) if end > begin else 0.0


def _count_most_decoding(answers: Sequence[Answer]) -> int:
    """Return the most requests that were between their first and last chunk at the same time."""
    chunks = [answer.timing.chunks for answer in answers if len(answer.timing.chunks) > 1]
    begins = np.sort([each[0][0] for each in chunks])
    ends = np.sort([each[-1][0] for each in chunks])
    under_way = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return int(under_way.max(initial=0))
