"""Checks that each load matches its name, and that servers, not the load generator, set the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from draftwise.core import Answer, Condition, Finding, OpenLoop, Run, Severity
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import fault, warning

_FEWEST_TURNS = 8


def check_load(run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds) -> list[Finding]:
    """Return findings on loads that do not match their names, by arm and condition."""
    return [*_failures(run), *_loads(run, thresholds), *_noise(run, of_baseline, thresholds)]


def check_refusals(run: Run, cell: Cell) -> Iterator[Finding]:
    """Yield each server of a cell that rejected requests as overloaded: the run then measures its limit."""
    for arm in (cell.baseline, cell.candidate):
        place = (arm, cell.condition.label)
        mine = [each for each in run.answers if (each.arm, each.condition) == place and each.refusals]
        if mine:
            count = sum(each.refusals for each in mine)
            text = (
                f"it rejected {len(mine)} requests for lack of capacity (HTTP 429 or 503, {count} times), and each "
                "was sent again"
            )
            if cell.condition.concurrency == 1:
                yield Finding.info("rate-limited", f"{text}. No answer's time includes the wait.", where=arm)
            else:
                text = f"{text}. Under this load, the run measured that limit"
                yield Finding.warning("rate-limited", f"{text}.", where=arm, fix="Raise the limit, or lower the load.")


def _loads(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    for arm in run.plan.arms:
        for condition in run.conditions:
            turns = _group_by_turn(run, arm.name, condition)
            if turns and condition.concurrency is not None and condition.concurrency > 1:
                yield from _not_reached(arm.name, condition, condition.concurrency, turns, thresholds)
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
    text = f"{len(failed)} of {len(asked)} requests failed and are left out. The first one: {why}"
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
        yield warning("load-not-reached", arm=arm, typical=typical, label=condition.label)


def check_queues(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield servers of a cell whose requests queued: never all streams were being answered, although answers are long.

    If only one of the two queues, the ratio compares their slots or memory, not speculation.
    """
    wanted, where = cell.condition.concurrency, cell.condition.label
    if wanted is None or wanted == 1:
        return
    found: dict[str, str] = {}
    slots: dict[str, int] = {}
    for arm in (cell.baseline, cell.candidate):
        turns = _group_by_turn(run, arm, cell.condition)
        most = max((_count_most_decoding(answers) for answers in turns), default=0)
        answers = [each for turn in turns for each in turn if each.measured and each.error is None]
        timings = [each.timing for each in answers if each.timing.e2e_s > 0]
        waiting = median([(timing.ttft_s or 0) / timing.e2e_s for timing in timings] or [0.0])
        slots[arm] = most
        if most and most < wanted * thresholds.load_reached and waiting > (1 - most / wanted) / 2:
            found[arm] = (
                f"{arm} never wrote more than {most} of {wanted} answers at a time at {where}, and its requests spent "
                f"{waiting:.0%} of their time before the first token"
            )
    fix = "They wait for a slot (max_num_seqs), for KV pages, or for long prompts."
    unlike = len({*slots.values()}) > 1
    fix += " Give both servers the same slots and memory." if unlike else " This load measures the queue."
    for arm, text in found.items():
        other = next(most for name, most in slots.items() if name != arm)
        text += f", but the other server wrote {other}" if unlike else ""
        yield Finding.warning("server-queues", f"{text}.", where=arm if unlike else where, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Third:
    """A third of the arrivals of all turns under an open loop."""

    in_flight: tuple[float, ...]
    """Turn by turn."""
    e2e_s: float

    @property
    def mean(self) -> float:
        """Mean requests in flight over all turns."""
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
            f"turn, {second.mean:.1f} in the middle third; they take {last.e2e_s:.2f} s, and {second.e2e_s:.2f} s in "
            "the middle third"
        )
        fix = "Such latencies depend on the length of the turn. Compare at a lower --rate."
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
    """First turns slower than the rest of the first repetition, compared with the same prompts in later ones."""
    slowness = _compare_first_repetition(run, arm)
    quarter = len(slowness) // 4
    if len(slowness) < _FEWEST_TURNS:
        return
    first, rest = median(slowness[:quarter]), median(slowness[quarter:])
    if first > rest * (1 + thresholds.cold_far):
        yield warning("server-cold", quarter=quarter, arm=arm, first=first, rest=rest)
    elif first > rest * (1 + thresholds.cold_start):
        yield warning("warm-up-short", quarter=quarter, arm=arm, first=first, rest=rest)


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

    In an open loop other requests arrive with it each time. Under a load a prompt is answered many times in a turn,
    with others each time: what counts is the typical time in each turn.
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
        yield warning("noisy-machine", spread=spread)


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


_ELSEWHERE = "Use more client processes (--processes), stop other work here, or measure from another machine."
_TIMER_S = 0.001
"""Timers of an event loop are that coarse (epoll counts milliseconds): a delay within it says nothing."""
_MANY_GAPS = 10
"""Gaps by which one reading in a hundred must be late to show a stalled loop; a few hardly move a median."""


def check_client(run: Run, cell: Cell, thresholds: Thresholds) -> list[Finding]:
    """Return findings on numbers that the load generator, or a selection of requests, may have determined."""
    return [*_check_strain(run, cell, thresholds), *_missing(cell, thresholds)]


def _check_strain(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield where the client, and not the server, may have set the numbers: the worse arm of a comparison."""
    strains = [each for arm in (cell.baseline, cell.candidate) if (each := _strain(cell, arm)) is not None]
    if strains:
        yield from _saturated(max(strains, key=lambda each: each.busy), thresholds)
        late = max(strains, key=_lateness)
        yield from _reads_late(late, thresholds, stamped=_is_stamped(run, late.arm))
        yield from _sends_late(max(strains, key=lambda each: each.lag_s), thresholds)
        yield from _takes_cores(run, max(strains, key=lambda each: each.cores), thresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strain:
    """What the turns of one arm asked of the load generator."""

    arm: str
    busy: float
    """CPU seconds per second and client process."""
    cores: float
    """CPU seconds per second, over all its processes."""
    late_s: float
    """P99 of the event loop's delay in the typical turn."""
    lag_s: float
    """P99 of the send lag in the typical turn."""
    usual_lag_s: float
    """Median over answers."""
    gap_s: float
    """Median over answers of the seconds between two chunks."""
    ttft_s: float
    """Median over answers."""
    e2e_s: float
    """Median over answers."""


def _strain(cell: Cell, arm: str) -> _Strain | None:
    turns = [turn for turn in cell.turns if turn.arm == arm and turn.wall_s > 0]
    answers = [each for each in cell.requests[arm] if each.error is None]
    if not turns or not answers:
        return None
    wall_s = sum(turn.wall_s for turn in turns)
    return _Strain(
        arm=arm,
        busy=sum(turn.client.cpu_s / max(1, turn.client.processes) for turn in turns) / wall_s,
        cores=sum(turn.client.cpu_s for turn in turns) / wall_s,
        late_s=median(turn.client.loop_delay_p99_s for turn in turns),
        lag_s=median(turn.client.send_lag_p99_s for turn in turns),
        gap_s=_median_or_zero(map(_find_gap_s, answers)),
        ttft_s=_median_or_zero(answer.timing.ttft_s for answer in answers),
        e2e_s=_median_or_zero(answer.timing.e2e_s for answer in answers),
        usual_lag_s=_median_or_zero(answer.timing.send_lag_s for answer in answers),
    )


def _saturated(strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    """A process that is always busy sets the pace itself."""
    if strain.busy >= thresholds.client_saturated:
        yield fault("client-saturated", busy=strain.busy, arm=strain.arm, elsewhere=_ELSEWHERE)
    elif strain.busy >= thresholds.client_busy:
        yield warning("client-busy", busy=strain.busy, arm=strain.arm, elsewhere=_ELSEWHERE)


def _lateness(strain: _Strain) -> float:
    """Return how late an arrival may be read, over the shortest time that is measured with such readings."""
    shortest = min((each for each in (strain.gap_s, strain.ttft_s) if each > 0), default=0.0)
    return strain.late_s / shortest if shortest and strain.late_s > _TIMER_S else 0.0


def _is_stamped(run: Run, arm: str) -> bool:
    """Return whether arrivals are timed by the kernel, so that a late reading costs nothing but merged chunks."""
    url = next((each.url for each in run.plan.arms if each.name == arm), None)
    on_linux = str(run.context.software.os).startswith("Linux")
    return on_linux and (url is None or url.startswith("http://"))


def _reads_late(strain: _Strain, thresholds: Thresholds, *, stamped: bool) -> Iterator[Finding]:
    """Chunks that arrive between two readings count as one; without the kernel's times they also count as late."""
    late = _lateness(strain)
    if late < (1 if stamped else thresholds.client_late):
        return
    text = (
        f"the load generator reads arrivals up to {strain.late_s * 1e3:.1f} ms late (P99) while {strain.arm} answers "
        f"with {strain.gap_s * 1e3:.1f} ms between chunks and {strain.ttft_s * 1e3:.0f} ms to the first"
    )
    if strain.late_s >= (strain.e2e_s / 2 if stamped else min(strain.ttft_s, _MANY_GAPS * strain.gap_s) or math.inf):
        yield Finding.error(
            "client-reads-late", f"{text}. The run measured the load generator, not the server.", fix=_ELSEWHERE
        )
    elif stamped:
        why = "Chunks that arrive in between count as one, so inter-token latencies are coarse. The other numbers hold"
        yield Finding.warning("client-reads-late", f"{text}. {why}.", fix=_ELSEWHERE)
    else:
        yield Finding.warning(
            "client-reads-late", f"{text}. The upper percentiles partly come from the client.", fix=_ELSEWHERE
        )


def _sends_late(strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    """Latencies of an open loop run from the intended time, so a request that is sent late looks like a slow server."""
    limit = max(_TIMER_S, thresholds.client_late * strain.ttft_s)
    if max(strain.lag_s, strain.usual_lag_s) <= limit:
        return
    text = (
        f"requests for {strain.arm} went out {strain.usual_lag_s * 1e3:.1f} ms after their time (median; P99 "
        f"{strain.lag_s * 1e3:.1f} ms). The median time to first token, which includes that lag, is "
        f"{strain.ttft_s * 1e3:.0f} ms"
    )
    severity = Severity.ERROR if strain.usual_lag_s > limit else Severity.WARNING
    yield Finding(code="client-sends-late", severity=severity, message=f"{text}.", fix=_ELSEWHERE)


def _takes_cores(run: Run, strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    cores = run.context.hardware.cores
    if (
        isinstance(cores, int)
        and strain.cores >= thresholds.client_share * cores
        and all(arm.is_here for arm in run.plan.arms)
    ):
        text = f"the load generator used {strain.cores:.2f} of the {cores} cores that it shares with {strain.arm}."
        yield Finding.warning("client-beside-server", text, fix="Measure from another machine.")


def _missing(cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a comparison with too many missing requests: the rest is a selection."""
    shares = {}
    for arm in (cell.baseline, cell.candidate):
        asked = cell.requests[arm]
        shares[arm] = sum(answer.error is not None for answer in asked) / max(1, len(asked))
    if max(shares.values()) > thresholds.failed_requests:
        text = ", ".join(f"{share:.0%} of {arm}'s" for arm, share in shares.items())
        yield fault("too-many-failures", text=text)


def _median_or_zero(values: Iterable[float | None]) -> float:
    """Return the median of the values that are there, 0 where none is."""
    return median([value for value in values if value is not None] or [0.0])


def _find_gap_s(answer: Answer) -> float | None:
    """Return the mean time between two chunks of an answer, None below two chunks."""
    chunks = answer.timing.chunks
    return (chunks[-1][0] - chunks[0][0]) / (len(chunks) - 1) if len(chunks) > 1 else None
