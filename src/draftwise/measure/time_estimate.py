"""Estimates how long turns will take: from the warm-up at first, then from the measured turns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

from draftwise.core import ClosedLoop, Condition, Load, Omission, Prompt, Replay, RunPlan
from draftwise.measure.load.requests import fill_streams
from draftwise.runs.turn_order import Turn, plan_turns
from draftwise.statistics import FEWEST_PROMPTS

_KEPT = 0.7
"""Weight of earlier turns after each new one: a machine may change its speed for good."""
_KEPT_OF_ALL = 0.95
"""The same for the average over all turns, used for kinds not measured yet: recent turns are often of one kind."""
_FEWEST_REPEATS = 2
"""Minimum number of repetitions to distinguish drift from a difference."""
_ENOUGH_PROMPTS = 12
"""Cut repetitions first if workloads have fewer prompts: new prompts are worth more than repeats."""
_BLOCK_PER_STREAM, _MANY = 4, 64
"""Requests of a block per stream, and assumed streams of a load that does not fix them."""
_FEWEST_BLOCKS = 3
"""Minimum number of blocks of a load to estimate what its requests have in common."""
_LEAST_PROMPTS = 3
"""Cut candidates first if workloads have fewer prompts."""

Pace = Mapping[tuple[str, str], float]
"""Seconds per output token of a whole server, by arm and condition label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPace:
    """How fast a server writes a text."""

    first_s: float = 0.0
    """Server seconds of each request until its first token."""
    per_token_s: float
    """Seconds per output token of the whole server."""


@dataclass(slots=True, kw_only=True)
class TimeEstimate:
    """Estimated duration of turns.

    Args:
        pace: pace in the warm-up.
        lengths: known answer lengths in tokens, by workload and prompt id.
        shares: share of `max_tokens` that other outputs reach, by workload.
        texts: pace by arm, workload and condition label, where known better than from the warm-up.
        turn_s: the plan's seconds per turn.
        overhead_s: seconds of each turn in addition to its requests.
        switch_s: seconds until another server is up and warm, if one is up at a time; otherwise 0.
        conditions: conditions with a known pace. A load added later is assumed to be like the next smaller one.
    """

    pace: Pace
    shares: Mapping[str, float]
    lengths: Mapping[tuple[str, str], int] = field(default_factory=dict)
    texts: Mapping[tuple[str, str, str], TextPace] = field(default_factory=dict)
    turn_s: float = 20.0
    overhead_s: float = 0.0
    switch_s: float = 0.0
    conditions: Sequence[Condition] = ()
    _seen: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict, init=False)
    """Seconds taken and expected, by arm, workload and label of the condition; the last turns count most."""
    _all: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    """The same of all turns, over more of them."""
    _filled: dict[tuple[str, int, tuple[str, ...], bool], tuple[int, float]] = field(default_factory=dict, init=False)
    """What several streams come to, by workload, number of streams, prompts and whether others keep the load up."""

    def sum(self, turns: Iterable[Turn]) -> float:
        """Return the seconds that turns take in sequence, including switches between servers."""
        turns = list(turns)
        stretches = {(turn.stretch, turn.arm) for turn in turns}
        starts = len(stretches) - len({stretch for stretch, _ in stretches})
        return sum(map(self.expect, turns)) + self.switch_s * starts

    def expect(self, turn: Turn) -> float:
        """Return the expected seconds of a turn."""
        seen = self._seen.get(_place(turn)) or self._seen.get(_place(self._stand_in(turn)))
        taken, expected = seen or self._all
        return self.expect_first(turn) * (taken / expected if expected else 1.0)

    def learn(self, turn: Turn, seconds: float) -> None:
        """Learn from the total duration of a turn."""
        expected = self.expect_first(turn)
        self._seen[_place(turn)] = _mix(self._seen.get(_place(turn), (0.0, 0.0)), seconds, expected, _KEPT)
        self._all = _mix(self._all, seconds, expected, _KEPT_OF_ALL)

    def find_slowdown(self, arm: str) -> float:
        """Return how many times as long as expected at first the last turns of an arm took; 1 without any."""
        mine = [sums for place, sums in self._seen.items() if place[0] == arm]
        expected = sum(each for _, each in mine)
        return sum(taken for taken, _ in mine) / expected if expected else 1.0

    def expect_first(self, turn: Turn) -> float:
        """Return the seconds of a turn as estimated before the first turn."""
        pace, streams = self._find_pace(turn), turn.condition.concurrency
        if streams is not None and streams > 1:
            requests, tokens = self._fill_streams(turn, streams)
        else:
            requests = len(turn.prompts)
            tokens = sum(self._count_tokens(turn.workload, prompt) for prompt in turn.prompts)
        work_s = pace.first_s * requests + pace.per_token_s * tokens
        if streams is None:
            # Requests come when they come: a server that is fast enough only waits for them.
            work_s = max(work_s, _arrive_within(turn.prompts, turn.condition.load, self.turn_s))
        return work_s + self.overhead_s

    def _fill_streams(self, turn: Turn, streams: int) -> tuple[int, float]:
        """Return the requests of a turn, and the tokens that all streams write until the last measured answer."""
        place = turn.workload, streams, tuple(prompt.id for prompt in turn.prompts), turn.background is None
        if place not in self._filled:
            requests, of_each = fill_streams(turn, streams, partial(self._count_tokens, turn.workload))
            self._filled[place] = requests, streams * of_each
        return self._filled[place]

    def _count_tokens(self, workload: str, prompt: Prompt) -> float:
        known = self.lengths.get((workload, prompt.id))
        # (Ramp-up requests are cut short.)
        return self.shares.get(workload, 1.0) * prompt.max_tokens if known is None else min(known, prompt.max_tokens)

    def _find_pace(self, turn: Turn) -> TextPace:
        alike = self._stand_in(turn)
        if (known := self.texts.get(_place(alike))) is not None:
            return known
        if (per_token_s := self.pace.get((turn.arm, alike.condition.label))) is None:
            # No load is like it: no faster than under any that is known.
            per_token_s = max(seconds for (arm, _), seconds in self.pace.items() if arm == turn.arm)
        return TextPace(per_token_s=per_token_s)

    def _stand_in(self, turn: Turn) -> Turn:
        """Return the turn under the planned load that is most like its own: the next smaller one, or the smallest."""
        here = turn.condition
        if (turn.arm, here.label) in self.pace or here.place is None:
            return turn
        axis, load = here.place
        planned = [
            (place[1], each)
            for each in self.conditions
            if (place := each.place) is not None and (place[0], each.temperature) == (axis, here.temperature)
        ]
        smaller = [pair for pair in planned if pair[0] <= load]
        if not planned:
            return turn
        _, alike = max(smaller, key=_at) if smaller else min(planned, key=_at)
        return replace(turn, condition=alike)


def _at(planned: tuple[float, Condition]) -> float:
    return planned[0]


def _place(turn: Turn) -> tuple[str, str, str]:
    return turn.arm, turn.workload, turn.condition.label


def _mix(sums: tuple[float, float], taken: float, expected: float, kept: float) -> tuple[float, float]:
    return kept * sums[0] + taken, kept * sums[1] + expected


def _arrive_within(prompts: Sequence[Prompt], load: Load, turn_s: float) -> float:
    """Return the seconds in which the requests of a turn arrive."""
    if isinstance(load, Replay):
        times = [prompt.arrival_s or 0.0 for prompt in prompts]
        return (max(times) - min(times)) / load.speed
    if isinstance(load, ClosedLoop):
        return 0.0
    if load.rate_per_s:
        return len(prompts) / load.rate_per_s
    return sum(turn_s if phase.duration_s is None else phase.duration_s for phase in load.phases)


def expect_seconds(plan: RunPlan, estimate: TimeEstimate) -> float:
    """Return the expected seconds of a plan."""
    repeats = range(1, plan.repeats + 1)
    return sum(estimate.sum(plan_turns(plan, plan.conditions, repeat)) for repeat in repeats)


def fit_plan(plan: RunPlan, estimate: TimeEstimate, seconds: float) -> tuple[RunPlan, list[Omission]]:
    """Return the part of a plan that fits into the time, and what is left out.

    Prompts are sent as long as time is left, so none is left out in advance. If even the fewest prompts that allow a
    verdict do not fit, loads go first, the middle ones before the ends, because a crossover can still be searched
    between the ends. Then the candidates with the slowest pilots go, then the least promising workloads: one verdict is
    worth more than several open cells. If the rest does not fit either, it is returned, and the time ends it. With one
    server at a time, each repetition asks the same prompts (`_fit_stretches`).
    """
    if plan.one_at_a_time:
        return _fit_stretches(plan, estimate, seconds)
    fitted, needed_s = plan, expect_least(plan, estimate)
    reason = (
        f"{FEWEST_PROMPTS} prompts of each workload would take {needed_s / 60:.1f} min, but only "
        f"{max(0.0, seconds) / 60:.1f} min are left"
    )
    while expect_least(fitted, estimate) > seconds and len(fitted.conditions) > 1:
        fitted = _without_condition(fitted)
    found = [Omission(what=what, reason=reason, is_final=True) for what in name_missing(fitted, plan)]
    while expect_least(fitted, estimate) > seconds and len(fitted.arms) > 2:
        name = _find_slowest(fitted, estimate)
        why = f"{reason}; it was the slowest of the remaining ones in a quick look, which is not a verdict"
        found.append(Omission(what=f"candidate {name}", reason=why, candidate=name, is_final=True))
        fitted = fitted.keep_arms([arm.name for arm in fitted.arms if arm.name != name])
    while expect_least(fitted, estimate) > seconds and len(fitted.workloads) > 1:
        name = _find_least_promising(fitted, estimate)
        why = f"{reason}; candidates promised least there in a look at their paces, which is no claim"
        found.append(Omission(what=f"workload {name}", reason=why, is_final=True))
        fitted = replace(fitted, workloads=tuple(each for each in fitted.workloads if each.name != name))
    if (least_s := expect_least(fitted, estimate)) > seconds:
        reason = (
            f"{FEWEST_PROMPTS} of each workload would take {least_s / 60:.1f} min, but only "
            f"{max(0.0, seconds) / 60:.1f} min are left"
        )
        found.append(Omission(what="enough prompts for a verdict", reason=reason, is_final=True))
    return fitted, found


def expect_least(plan: RunPlan, estimate: TimeEstimate) -> float:
    """Return the seconds of the fewest blocks, of all workloads and loads, that can decide anything."""
    requests = max(_BLOCK_PER_STREAM * (each.concurrency or _MANY) for each in plan.conditions)
    plan = replace(plan, workloads=tuple(each.first(FEWEST_PROMPTS * requests) for each in plan.workloads))
    begun: Counter[tuple[str, str]] = Counter()
    taken: set[tuple[str, str, int, int]] = set()
    seconds = 0.0
    for turn in plan_turns(plan, plan.conditions, 1):
        fewest = FEWEST_PROMPTS if turn.condition.concurrency == 1 else _FEWEST_BLOCKS
        if turn.block_key not in taken and begun[turn.place] < fewest:
            taken.add(turn.block_key)
            begun[turn.place] += 1
        seconds += estimate.expect(turn) if turn.block_key in taken else 0.0
    return seconds


def _fit_stretches(plan: RunPlan, estimate: TimeEstimate, seconds: float) -> tuple[RunPlan, list[Omission]]:
    """Return what of a plan fits in the time where one server is up at a time, and what is left out for it.

    First every workload is cut to fewer prompts, in the order in which they were drawn, as long as these are enough:
    that is a choice of the run, no omission. Then repetitions go, then prompts down to the fewest that decide anything,
    then loads, then prompts again, then the last candidates.
    """
    fitted = _cut(plan, estimate, seconds, _ENOUGH_PROMPTS)
    reason = _say_needed(fitted, estimate, seconds)
    found: list[Omission] = []
    while expect_seconds(fitted, estimate) > seconds and fitted.repeats > _FEWEST_REPEATS:
        fitted = replace(fitted, repeats=fitted.repeats - 1)
    fitted = _cut(fitted, estimate, seconds, FEWEST_PROMPTS)
    needed = _say_needed(fitted, estimate, seconds)
    while expect_seconds(fitted, estimate) > seconds and len(fitted.conditions) > 1:
        fitted = _without_condition(fitted)
    gone = name_missing(fitted, plan)
    reasons = [reason] * (fitted.repeats < plan.repeats) + [needed]
    found += [Omission(what=what, reason=why, is_final=True) for what, why in zip(gone, reasons, strict=False)]
    if expect_seconds(fitted, estimate) > seconds:
        # All workloads together must have enough to decide.
        least = max(_LEAST_PROMPTS, ceil(FEWEST_PROMPTS / len(fitted.workloads)))
        fitted = _cut(fitted, estimate, seconds, least)
    while expect_seconds(fitted, estimate) > seconds and len(fitted.arms) > 2:
        name = _find_slowest(fitted, estimate)
        found.append(Omission(what=f"candidate {name}", reason=needed, candidate=name, is_final=True))
        fitted = fitted.keep_arms([arm.name for arm in fitted.arms if arm.name != name])
    fewest = max(len(workload.prompts) for workload in fitted.workloads)
    return _cut(replace(fitted, workloads=plan.workloads), estimate, seconds, fewest), found


def name_missing(plan: RunPlan, asked: RunPlan) -> list[str]:
    """Name the repetitions, then the loads, that `asked` has and `plan` lacks."""
    labels = {condition.label for condition in plan.conditions}
    names = [condition.label for condition in asked.conditions if condition.label not in labels]
    missing = [name_repetitions(plan.repeats + 1, asked.repeats)] if plan.repeats < asked.repeats else []
    return [*missing, f"{'load' if len(names) == 1 else 'loads'} {', '.join(names)}"] if names else missing


def _say_needed(plan: RunPlan, estimate: TimeEstimate, seconds: float) -> str:
    count, needed = max(len(workload.prompts) for workload in plan.workloads), expect_seconds(plan, estimate)
    what = f"{count} prompts of each workload in {plan.repeats} repetitions"
    return f"{what} would take {needed / 60:.1f} min, but only {max(0.0, seconds) / 60:.1f} min are left"


def name_repetitions(first: int, last: int) -> str:
    """Name a range of repetitions."""
    return f"repetition {first}" if first == last else f"repetitions {first} to {last}"


def _cut(plan: RunPlan, estimate: TimeEstimate, seconds: float, fewest: int) -> RunPlan:
    """Return the plan with every workload cut to as many prompts as fit, but not under a few."""

    def cut(count: int) -> RunPlan:
        return replace(plan, workloads=tuple(workload.first(count) for workload in plan.workloads))

    most = max(len(workload.prompts) for workload in plan.workloads)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if expect_seconds(cut(middle), estimate) > seconds:
            most = middle - 1
        else:
            fewest = middle
    return cut(fewest)


def _without_condition(plan: RunPlan) -> RunPlan:
    middle = len(plan.conditions) // 2
    return replace(plan, conditions=(*plan.conditions[:middle], *plan.conditions[middle + 1 :]))


def _find_slowest(plan: RunPlan, estimate: TimeEstimate) -> str:
    """Return the candidate that is expected to take longest for the first prompts of all workloads."""
    few = replace(plan, workloads=tuple(each.first(FEWEST_PROMPTS) for each in plan.workloads))
    seconds = dict.fromkeys((arm.name for arm in plan.arms), 0.0)
    for turn in plan_turns(few, few.conditions, 1):
        seconds[turn.arm] += estimate.expect(turn)
    return max(reversed(plan.arms[1:]), key=lambda arm: seconds[arm.name]).name


def _find_least_promising(plan: RunPlan, estimate: TimeEstimate) -> str:
    """Return the workload on which the best candidate is expected to gain least; of equal ones the last."""
    few = replace(plan, workloads=tuple(each.first(FEWEST_PROMPTS) for each in plan.workloads))
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for turn in plan_turns(few, few.conditions, 1):
        seconds[turn.workload, turn.arm] += estimate.expect(turn)
    plain, *others = (arm.name for arm in plan.arms)
    names = [each.name for each in reversed(plan.workloads)]
    return min(names, key=lambda name: seconds[name, plain] / min(seconds[name, other] for other in others))


def describe_plan(plan: RunPlan, pace: Pace, seconds: float) -> list[str]:
    """Describe a plan in a few lines: its size, its expected time, and the servers' pace in the warm-up."""
    workloads = " + ".join(f"{len(each.prompts)} {each.name}" for each in plan.workloads)
    loads = "" if len(plan.conditions) == 1 else f"{len(plan.conditions)} conditions x "
    if plan.minutes is not None and not plan.one_at_a_time:
        lines = [
            f"{len(plan.arms)} arms x {loads}as many of {workloads} prompts, drawn with seed {plan.seed}, as "
            f"{_duration(seconds)} allow"
        ]
        return lines + _tell_paces(plan, pace)
    repeats = range(1, plan.repeats + 1)
    total = sum(len(turn.prompts) for repeat in repeats for turn in plan_turns(plan, plan.conditions, repeat))
    once = f", {' and '.join(plan.remembering)} each prompt once:" if plan.remembering else " ="
    lines = [
        f"{len(plan.arms)} arms x {loads}({workloads}) prompts x {plan.repeats} repetitions{once} "
        f"{'at most ' if plan.adaptive else ''}{total} requests, about {_duration(seconds)}"
    ]
    return lines + _tell_paces(plan, pace)


def _tell_paces(plan: RunPlan, pace: Pace) -> list[str]:
    return [
        f"warm-up tokens/s at {condition.label}: "
        + ", ".join(f"{arm.name} {1 / pace[arm.name, condition.label]:.0f}" for arm in plan.arms)
        for condition in plan.conditions
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
