"""Finds disturbed turns. Their readings do not count, and the run measures them again.

The unit is a pair: a candidate's turn and the baseline's, in the same attempt at the same block. A disturbed candidate
turn costs that candidate the pair; a disturbed baseline turn costs every candidate theirs. No test depends on which arm
was faster. A turn is disturbed if the machine reports it (CPU time lost to the hypervisor, a quota or other processes,
a fallen clock), or if its pace is far from that of nearby turns.

Pace is seconds per decoding step, which hardly depends on the text. It does depend on the tokens that a step verifies
and on the context length, so turns are compared only with turns of similar work. A prompt that is slow every time is
slow by itself. Without these rules, long prompts and prompts without drafts would drop out, and the rest would be a
biased selection. For the same reason, pace is not judged in open loops: a burst is part of that load. And a verdict has
to be the same with the pairs that only their pace set aside, and that there was no time to take again.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import fmean, median, quantiles

from draftwise.core import Answer, Disturbance, Run, TurnRecord
from draftwise.core.grouping import group_by
from draftwise.deciding.thresholds import Thresholds

FIRST_TOKEN = "the time to the first token"
LONGEST_GAP_S = 60.0
"""Longest gap between two turns of one session."""
_COUNTERS = ("busy_s", "steal_s", "own_s", "quota_stopped_s", "waited_s", "thermal_stops")
_NEIGHBOURS = 16
"""Number of nearest turns of similar work to compare a turn with."""
_FARTHEST = 32
"""Number of an arm's turns, before and after a turn, to search for neighbors."""
_FEWEST_NEIGHBOURS = 4
"""Minimum number of neighbors to judge a turn's pace."""
_SPREADS = 4.0
"""Number of standard deviations between neighbors below which a difference is not a disturbance."""
_QUARTILE_STEP = 0.4506
"""Lower quartile of the difference between two normal values, over their standard deviation."""
_LIKE_ROWS = math.log(1.1)
_LIKE_LENGTH = math.log(1.5)
_SHORT = 256
"""Context length in tokens up to which steps and first tokens hardly slow down."""
_COLD = "the server's pace was not steady after the warm-up"
_TICKS_S = 0.05
"""Smallest CPU time that clock ticks of 10 ms can resolve."""


def set_aside_disturbed(
    run: Run, thresholds: Thresholds, uses: Sequence[MachineUse] | None = None, *, spares_pace: bool = False
) -> Run:
    """Return the run with only the turns and answers that count: the last undisturbed pair per block and candidate.

    A candidate without such a pair loses the block, and `Run.disturbances` says why. Turns without a partner, because
    the run ended, are left out, too. A second call changes nothing. Arguments as for `find_disturbances`, and:

    Args:
        spares_pace: where there is no undisturbed pair, the last one that only its pace disturbs counts.
    """
    if run.disturbances or run.set_aside:
        return run
    disturbances = tuple(find_disturbances(run, thresholds, uses))
    counting = _find_counting(run, {(each.attempt_key, each.arm) for each in disturbances})
    if spares_pace:
        taken = {(each.attempt_key, each.arm) for each in disturbances if not each.by_pace}
        counting = _find_counting(run, taken) | counting
    kept = set(chain.from_iterable(counting.values()))
    return replace(
        run,
        turns=tuple(turn for turn in run.turns if turn.turn in kept),
        answers=tuple(answer for answer in run.answers if answer.turn in kept),
        disturbances=disturbances,
        set_aside=tuple(turn for turn in run.turns if turn.turn not in kept),
    )


def find_disturbances(
    run: Run, thresholds: Thresholds, uses: Sequence[MachineUse] | None = None
) -> Iterator[Disturbance]:
    """Yield the disturbed turns in the order of the run.

    Args:
        run: the run on disk, with every attempt.
        thresholds: the run's thresholds.
        uses: result of `measure_use` for all its turns. None: computed here.
    """
    noted = _note_all(run, thresholds, measure_use(run.turns) if uses is None else uses)
    for turn in sorted(run.turns, key=lambda each: each.turn):
        if (note := noted.get(turn.turn)) is not None:
            yield Disturbance(
                workload=turn.workload,
                condition=turn.condition,
                repeat=turn.repeat,
                block=turn.block,
                attempt=turn.attempt,
                arm=turn.arm,
                reason=note.reason,
                is_faster=note.is_faster,
                by_pace=note.by_pace,
            )


def _find_counting(run: Run, disturbed: Container[tuple[object, str]]) -> dict[tuple[object, str], tuple[int, int]]:
    """Return the turns of the last undisturbed pair of every block and candidate; of the first, if it may remember."""
    undisturbed = [turn for turn in run.turns if (turn.attempt_key, turn.arm) not in disturbed]
    name = run.plan.arms[0].name
    baseline = {turn.attempt_key: turn.turn for turn in undisturbed if turn.arm == name}
    last: dict[tuple[object, str], tuple[int, int]] = {}
    for turn in sorted(undisturbed, key=lambda each: each.attempt):
        key = (turn.block_key, turn.arm)
        if turn.arm == name or (partner := baseline.get(turn.attempt_key)) is None:
            continue
        if turn.arm not in run.plan.remembering or key not in last:
            last[key] = (turn.turn, partner)
    return last


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPair:
    """A block that a candidate lost because every pair of turns was disturbed."""

    block: tuple[str, str, int, int]
    """Workload, condition, repetition and block."""
    candidate: str
    attempts: int
    reason: str
    """Cause of the first disturbance."""


def find_lost_pairs(counted: Run) -> list[LostPair]:
    """Return the pairs that candidates lost to disturbances, in the order of the run.

    Args:
        counted: result of `set_aside_disturbed`.
    """
    baseline, told = counted.plan.arms[0].name, {(each.attempt_key, each.arm): each for each in counted.disturbances}
    left = {(turn.block_key, turn.arm) for turn in counted.turns}
    found: dict[tuple[tuple[str, str, int, int], str], list[Disturbance]] = {}
    for turn in sorted(counted.set_aside, key=lambda each: each.turn):
        place = (turn.block_key, turn.arm)
        why = told.get((turn.attempt_key, turn.arm)) or told.get((turn.attempt_key, baseline))
        if turn.arm != baseline and place not in left and why is not None:
            found.setdefault(place, []).append(why)
    return [
        LostPair(block=block, candidate=candidate, attempts=len(disturbances), reason=disturbances[0].reason)
        for (block, candidate), disturbances in found.items()
    ]


@dataclass(frozen=True, slots=True)
class _Note:
    """What is wrong with a turn."""

    reason: str
    is_faster: bool = False
    """Whether the only sign is a pace far faster than usual."""
    by_pace: bool = False


def _note_all(run: Run, thresholds: Thresholds, uses: Sequence[MachineUse]) -> dict[int, _Note]:
    """Return by number what disturbed a turn; the machine's own word comes before what the pace shows."""
    is_ours = all(arm.url is None for arm in run.plan.arms)
    notes = {turn.turn: _Note(_COLD) for turn in run.turns if not turn.is_warm}
    for series, least, clause in _list_series(run, thresholds):
        for reading, ratio in _find_far(series, math.log(1 + least)):
            # A clock is read while prompts run; a smaller number does not mean a faster clock.
            by_pace = bool(reading.prompts)
            notes[reading.turn.turn] = _Note(clause.format(ratio), is_faster=ratio < 1 and by_pace, by_pace=by_pace)
    usual = _find_usual(uses, thresholds) if is_ours else 0.0
    for use in uses:
        if (reason := _find_taken(use, thresholds, usual, is_ours=is_ours)) is not None:
            notes[use.turn.turn] = _Note(reason)
    return notes


def _find_usual(uses: Sequence[MachineUse], thresholds: Thresholds) -> float:
    """Return the upper quartile of the share of the cores that others use; 0 where half of the turns have little.

    What is always there disturbs no single turn: pairs have it on both sides, and intervals are the wider for it.
    How much of a core a busy neighbor gets varies with what the server leaves.
    """
    shares = [each.foreign_s / (each.cores * each.seconds) for each in uses if each.foreign_s is not None]
    if len(shares) < 2 or median(shares) <= thresholds.other_processes:
        return 0.0
    return quantiles(shares, n=4, method="inclusive")[2]


def _find_taken(use: MachineUse, thresholds: Thresholds, usual: float, *, is_ours: bool) -> str | None:
    """Return in words who took the CPU from a turn; None where nobody did more than usual, or nothing is known."""
    stolen = use.cpu.get("steal_s", 0.0)
    wanted = use.cpu.get("busy_s", 0.0) + stolen
    if stolen > max(thresholds.turn_held_up * wanted, _TICKS_S):
        return f"the hypervisor gave other machines {stolen / wanted:.0%} of the CPU time that this one needed"
    held = use.cpu.get("quota_stopped_s", 0.0)
    if held > max(thresholds.turn_held_up * use.seconds, _TICKS_S):
        return f"the container's CPU limit stopped processes for {held / use.seconds:.2f} s in every second"
    foreign, whole = use.foreign_s if is_ours else None, use.cores * use.seconds
    is_much = foreign is not None and foreign > max((usual + thresholds.other_processes) * whole, _TICKS_S)
    if foreign is not None and is_much and _is_crowded(use, wanted / whole, thresholds):
        return f"other processes used {foreign / use.seconds:.2f} of this machine's {use.cores} cores"
    return None


def _is_crowded(use: MachineUse, busy: float, thresholds: Thresholds) -> bool:
    """Return whether something had to wait for a core; without pressure stall information, whether all were in use.

    Args:
        busy: share of the cores' time that was wanted.
    """
    waited = use.cpu.get("waited_s")
    return busy > 1 - thresholds.other_processes if waited is None else waited > thresholds.turn_waited * use.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """Growth of the machine's counters over a turn and since the previous turn ended."""

    turn: TurnRecord
    seconds: float
    cpu: Mapping[str, float]
    """Growth by the names of `draftwise.measure.device_state`, without unreadable ones."""

    @property
    def cores(self) -> int:
        """Cores of the machine."""
        return int(self.turn.device.get("cpu", {}).get("cores") or 1)

    @property
    def foreign_s(self) -> float | None:
        """CPU seconds used by other processes than this one and the servers it started; None if unknown."""
        return self.cpu["busy_s"] - self.cpu["own_s"] if {"busy_s", "own_s"} <= self.cpu.keys() else None


def measure_use(turns: Iterable[TurnRecord]) -> list[MachineUse]:
    """Return the machine's use per turn, in the order of the run.

    Leaves out turns without a reading before or after, and turns across a pause of the run or a reboot.
    """
    ordered = sorted(turns, key=lambda each: each.turn)
    return [use for before, after in pairwise(ordered) if (use := _measure(before, after)) is not None]


def _measure(before: TurnRecord, after: TurnRecord) -> MachineUse | None:
    seconds = after.device.get("monotonic_s", 0) - before.device.get("monotonic_s", 0)
    if not (before.device and after.device and 0 < seconds < after.wall_s + LONGEST_GAP_S):
        return None
    old, new = before.device.get("cpu", {}), after.device.get("cpu", {})
    cpu = {name: new[name] - old[name] for name in _COUNTERS if name in old and name in new}
    return None if any(value < 0 for value in cpu.values()) else MachineUse(turn=after, seconds=seconds, cpu=cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A number of a turn, to be compared with those of turns that did like work."""

    turn: TurnRecord
    log: float
    """Logarithm of the number."""
    rows: float = 0.0
    """Logarithm of the tokens verified per step."""
    length: float = 0.0
    """Logarithm of the context tokens, beyond those that cost nothing."""
    prompts: tuple[str, ...] = ()
    """The turn's prompts; empty if the number does not depend on them."""

    def is_like(self, other: _Reading) -> bool:
        """Return whether two turns did similar work."""
        return abs(self.rows - other.rows) <= _LIKE_ROWS and abs(self.length - other.length) <= _LIKE_LENGTH


def _list_series(run: Run, thresholds: Thresholds) -> Iterator[tuple[list[_Reading], float, str]]:
    """Yield comparable readings in the order of the run, the least deviation that counts, and what to say of it.

    What says most comes last.
    """
    around = "{:.2f}x that of the turns around it"
    closed = {each.label for each in run.conditions if each.concurrency is not None}
    drafting = {arm.name: arm.spec is not None for arm in run.plan.arms}
    timed = (each for each in run.answers if each.measured and each.error is None and each.timing.chunks)
    answers = group_by(lambda answer: answer.turn, timed)
    paces: dict[tuple[str, str, str], list[_Reading]] = {}
    firsts: dict[tuple[str, str, str], list[_Reading]] = {}
    ordered = sorted(run.turns, key=lambda each: each.turn)
    for turn in ordered:
        place = (turn.arm, turn.workload, turn.condition)
        if turn.condition in closed and (mine := answers.get(turn.turn)):
            paces.setdefault(place, []).extend(_read_pace(turn, mine, is_drafting=drafting[turn.arm]))
            firsts.setdefault(place, []).extend(_read_first_token(turn, mine))
    clocks = ((turn, turn.device.get("cpu", {}).get("mhz")) for turn in ordered)
    clock = [_Reading(turn=turn, log=math.log(mhz)) for turn, mhz in clocks if mhz]
    yield clock, thresholds.turn_pace, f"the CPU's clock was {around}"
    yield from ((each, thresholds.turn_first, f"{FIRST_TOKEN} was {around}") for each in firsts.values())
    yield from ((each, thresholds.turn_pace, f"the time of a decoding step was {around}") for each in paces.values())


def _read_pace(turn: TurnRecord, answers: Sequence[Answer], *, is_drafting: bool) -> Iterator[_Reading]:
    """Yield the seconds per decoding step; nothing where the steps of a drafting server are not counted."""
    timings = [answer.timing for answer in answers]
    seconds = sum(timing.chunks[-1][0] - timing.chunks[0][0] for timing in timings)
    tokens = sum(timing.num_tokens - timing.chunks[0][1] for timing in timings)
    per_step = turn.counters.tokens_per_step or (None if is_drafting else 1.0)
    if tokens > 0 and seconds > 0 and per_step is not None:
        steps = (turn.counters.generation_tokens or 0) - turn.counters.spec.num_accepted_tokens
        rows = 1 + turn.counters.spec.num_draft_tokens / steps if steps > 0 else 1.0
        context = fmean((each.num_prompt_tokens or 0) + each.timing.num_tokens / 2 for each in answers)
        log = math.log(seconds / tokens * per_step)
        yield _Reading(
            turn=turn, log=log, rows=math.log(rows), length=math.log(context + _SHORT), prompts=_names(answers)
        )


def _read_first_token(turn: TurnRecord, answers: Sequence[Answer]) -> Iterator[_Reading]:
    """Yield the typical time to the first token of a turn."""
    seconds = median(answer.timing.ttft_s or 0.0 for answer in answers)
    if seconds > 0:
        length = fmean(answer.num_prompt_tokens or 0 for answer in answers)
        length = math.log(length + _SHORT)
        yield _Reading(turn=turn, log=math.log(seconds), length=length, prompts=_names(answers))


def _names(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(sorted(answer.prompt_id for answer in answers))


def _find_far(series: Sequence[_Reading], least: float) -> Iterator[tuple[_Reading, float]]:
    """Yield the readings that are far from the usual one around them, with the ratio of the two.

    Usual is the lower quartile of the neighbors: what disturbs makes slower, and may do so for most of a while. How
    far neighbors lie apart anyway shows in the smaller steps from one to the next, which no disturbance changes.

    Args:
        series: in the order of the run.
        least: difference of logarithms that is never far.
    """
    steps = sorted(abs(after.log - before.log) for before, after in pairwise(series) if before.is_like(after))
    if len(steps) < _FEWEST_NEIGHBOURS:
        return
    far = max(least, _SPREADS * steps[len(steps) // 4] / _QUARTILE_STEP)
    from_usual = [_compare(series, place) for place in range(len(series))]
    takes: dict[tuple[str, ...], list[float]] = {}
    for reading, ratio in zip(series, from_usual, strict=True):
        if ratio is not None:
            takes.setdefault(reading.prompts, []).append(ratio)
    for reading, ratio in zip(series, from_usual, strict=True):
        mine = takes.get(reading.prompts, [])
        if ratio is None and reading.turn.attempt:
            ratio = max(mine, key=abs, default=None)
        if ratio is not None and abs(ratio) > far and not (reading.prompts and _is_their_own(mine, far)):
            yield reading, math.exp(ratio)


def _is_their_own(ratios: Sequence[float], far: float) -> bool:
    """Return whether prompts were as slow, or as fast, whenever they were asked, which was more than once."""
    least, most = min(ratios), max(ratios)
    return len(ratios) > 1 and (least > far or most < -far) and most - least <= far


def _compare(series: Sequence[_Reading], place: int) -> float | None:
    """Return the logarithm of a reading over the usual one around it; None where too few did like work."""
    near = sorted(each.log for each in _nearest(series, place))
    return series[place].log - near[len(near) // 4] if len(near) >= _FEWEST_NEIGHBOURS else None


def _nearest(series: Sequence[_Reading], place: int) -> list[_Reading]:
    """Return the nearest readings of like work, before and after a place."""
    found: list[_Reading] = []
    for distance in range(1, min(len(series), _FARTHEST + 1)):
        both = (other for other in (place - distance, place + distance) if 0 <= other < len(series))
        found += (series[other] for other in both if series[place].is_like(series[other]))
        if len(found) >= _NEIGHBOURS:
            break
    return found
