"""Repeats the grid of a run, stops settled cells early, and searches the load where speculation stops paying."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

from draftwise.core import Condition, Estimate, Finding, Omission, Progress, RunPlan, Settled
from draftwise.core.progress import check_stop
from draftwise.measure.experiment import Experiment
from draftwise.measure.replan import (
    FIRST_ANALYSIS,
    Place,
    describe_first_verdict,
    describe_lead,
    find_lost,
    find_promising,
    find_settled,
    fit_repetition,
    leave_out,
    list_missing,
    next_conditions,
    plan_retakes,
    put_first,
    rank_candidates,
)
from draftwise.measure.time_budget import TimeBudget
from draftwise.measure.time_estimate import TimeEstimate, expect_seconds, fill_plan, name_missing
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import Turn, join_stretches, plan_turns
from draftwise.statistics import FEWEST_PROMPTS

__all__ = ["Sweep"]

_MOST_ROUNDS = 6
"""Searches for loads to add; each halves what is not known of a crossover, until only noise is left."""
_LOOK_AGAIN = 1.15
"""Times the prompts of the last look for a first verdict, for the next one: a look takes time of the run."""
_RETAKEN = 0.25
"""Share of a repetition's turns that are taken again at most, each time."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Measures everything that a plan asks for and its time allows.

    Args:
        estimate: how long turns take; learns from those that are measured.
        budget: in which everything has to end.
        without: candidates that are left out; those that the time is too short for are added.
        returned: candidates that the run was measured without before it was continued.
        asked: the plan before loads and repetitions were left out that the time was expected to be too short for.
    """

    experiment: Experiment
    estimate: TimeEstimate
    budget: TimeBudget
    without: set[str] = field(default_factory=set)
    returned: Collection[str] = ()
    asked: RunPlan | None = None
    _number: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    """Turns that were measured."""
    _ahead: Sequence[Sequence[Turn]] = field(default=(), init=False)
    """Blocks that are left of what is being measured."""
    _later: Sequence[Turn] = field(default=(), init=False)
    """Turns of the repetitions after it, as far as they fit."""
    _last: int = field(default=0, init=False)
    """Repetition up to which the time allowed for everything when that was looked at last."""
    _has_reported: bool = field(default=False, init=False)
    """Whether any result was shown."""
    _word_due: float = field(default=math.inf, init=False)
    """When one is shown at the latest, on the clock of the event loop; later where nothing counts by then."""
    _leading: Place | None = field(default=None, init=False)
    """Where the first verdict is looked for."""
    _num_led: int = field(default=0, init=False)
    """Prompts that were measured there."""
    _next_look: int = field(default=FEWEST_PROMPTS, init=False)
    """So many of them are needed for the next look."""
    _is_over: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Measure the plan's grid, then, in an adaptive run, loads around each crossover.

        Raises:
            BackendError: a server broke; what was measured is on disk.
            StorageError: the disk is full; what was measured is on disk.
            Stopped: the progress asked to stop; what was measured is on disk.
        """
        self._number, self._word_due = self._directory.next_number(), self.budget.first_word
        await self._measure_all()
        self._ahead = self._later = ()
        self._note_estimate()

    async def _measure_all(self) -> None:
        await self._repeat_all(self._plan.conditions)
        for condition in self._directory.read().added:
            await self._repeat_all([condition])
        if self._plan.adaptive:
            for _ in range(_MOST_ROUNDS - len(self._directory.read().added)):
                if self._is_over or not (found := next_conditions(self._directory.read())):
                    break
                if self._left_s() < self._expect_first(list(found)):
                    self._leave_out(_name_search(found, self._left_s()))
                    break
                self._add(found)
                await self._repeat_all(list(found))

    def expect_seconds(self) -> float:
        """Return how long everything takes that is not measured yet, if nothing is stopped early."""
        missing = (self._missing(self._plan.conditions, repeat) for repeat in range(1, self._plan.repeats + 1))
        return self.estimate.sum(chain(*missing))

    def _expect_first(self, conditions: Sequence[Condition]) -> float:
        """Return the seconds of one repetition under conditions that are not added yet."""
        run = self._directory.read()
        added = (*run.added, *conditions)
        turns = plan_turns(self._plan, conditions, 1, added=added, settled=run.settled)
        return self.estimate.sum(leave_out(turns, self.without))

    def _add(self, found: Mapping[Condition, Container[tuple[str, str]]]) -> None:
        """Record which loads are added, and that cells away from their crossover are not measured there."""
        for condition, near in found.items():
            self._directory.add_condition(condition)
            for workload, arm in product(self._plan.workloads, self._plan.arms[1:]):
                if (workload.name, arm.name) not in near and arm.name not in self.without:
                    self._directory.add_settled(
                        Settled(workload=workload.name, condition=condition.label, candidate=arm.name, passes=0)
                    )

    async def _repeat_all(self, conditions: Sequence[Condition]) -> None:
        """Measure all repetitions under some conditions, as far as the time allows."""
        repeat = 0
        while (repeat := repeat + 1) <= self._plan.repeats:
            ahead = {number: self._missing(conditions, number) for number in range(repeat, self._plan.repeats + 1)}
            blocks = self._fit(ahead)
            if self._leading is None and not self._plan.one_at_a_time:
                blocks = self._lead(blocks)
            await self._measure(blocks, repeat, f"measuring repetition {repeat}")
            await self._retake(conditions, repeat)
            if self._is_over:
                return
            self.experiment.cold.clear()
            if repeat == 1 and conditions == self._plan.conditions and self._take_in():
                conditions, repeat = self._plan.conditions, 0
                continue
            if ahead[repeat] and repeat < self._plan.repeats:
                self._report_lead()
            if ahead[repeat] and self._plan.adaptive and FIRST_ANALYSIS <= repeat < self._plan.repeats:
                for cell in find_settled(self._directory.read(), conditions, repeat):
                    self._directory.add_settled(cell)

    def _take_in(self) -> bool:
        """Take in what fits of the loads and repetitions that were left out, now that one has shown how long it takes.

        No verdict has been looked at that could end anything by then. Where prompts are dealt to loads and
        repetitions, as for candidates that could remember them, the plan stays.
        """
        asked = self.asked
        if asked is None or self._is_over or self._plan.asked_once:
            return False
        plan = self._plan.keep_arms([arm.name for arm in self._plan.arms if arm.name not in self.without])
        first, missing = self._plan_repetition(plan.conditions, 1), self._missing(plan.conditions, 1)
        measured_s = self.estimate.sum(first) - self.estimate.sum(missing)
        fuller = fill_plan(plan, asked, self.estimate, measured_s + self._left_s())
        if fuller == plan:
            return False
        run = self._directory.read()
        prompts = [each.what for each in run.omissions if each.candidate is None and not each.is_final]
        self.experiment.plan = replace(run.plan, conditions=fuller.conditions, repeats=fuller.repeats)
        self._directory.begin(self._plan, run.context)
        for what in (*name_missing(plan, asked), *prompts):
            self._directory.strike_omissions(what)
        text = f"There is time for {' and '.join(name_missing(plan, fuller))} after all."
        self._progress.notice(Finding.info("plan-changed", text))
        whole_s = expect_seconds(replace(plan, conditions=asked.conditions, repeats=asked.repeats), self.estimate)
        reason = f"with all of it {whole_s - measured_s:.0f} s are needed, and {self._left_s():.0f} s are left"
        for what in name_missing(fuller, asked):
            self._leave_out(Omission(what=what, reason=reason, is_final=True))
        return True

    def _plan_repetition(self, conditions: Sequence[Condition], repeat: int) -> list[Turn]:
        """Return the turns of a repetition, without the candidates that were left out."""
        run = self._directory.read()
        turns = plan_turns(self._plan, conditions, repeat, added=run.added, settled=run.settled)
        return leave_out(turns, self.without)

    def _missing(self, conditions: Sequence[Condition], repeat: int) -> list[Turn]:
        planned = self._plan_repetition(conditions, repeat)
        askable = [turn for turn in planned if self.experiment.has(turn) or self.experiment.may_ask(turn)]
        return list_missing(askable, self._directory.read(), returned=self.returned)

    def _fit(self, ahead: Mapping[int, Sequence[Turn]]) -> Sequence[Sequence[Turn]]:
        """Return the blocks to measure now; what does not fit is left out and said."""
        is_short = self.estimate.sum(chain(*ahead.values())) > self._left_s()
        run = self._directory.read()
        ranking = rank_candidates(run) if is_short and run.turns else []
        fitted = fit_repetition(ahead, self.estimate, self._left_s(), ranking)
        for omission in fitted.omissions:
            self._leave_out(omission)
        self.without |= fitted.without
        self._is_over = fitted.last < min(ahead)
        if fitted.last not in (self._last, max(ahead)) and not self._is_over:
            text = f"As it looks, there is time for {fitted.last} of {self._plan.repeats} repetitions."
            self._progress.notice(Finding.info("plan-changed", text))
        self._last = fitted.last
        self._ahead = fitted.blocks
        self._later = [turn for number in range(min(ahead) + 1, fitted.last + 1) for turn in ahead[number]]
        self._note_estimate()
        self._report_progress(chain(*self._ahead, self._later))
        return fitted.blocks

    async def _measure(self, blocks: Sequence[Sequence[Turn]], number: int, doing: str) -> None:
        """Measure paired blocks, numbered in their order, until the time does not allow for another one."""
        self._progress.status(doing)
        if self._plan.one_at_a_time and blocks:
            # The server that was warmed up last is up still: it begins.
            blocks = [join_stretches(chain(*blocks), [arm.name for arm in reversed(self._plan.arms)], number)]
        for place, block in enumerate(blocks):
            expected = self.estimate.sum(block)
            if expected > self._left_s():
                self._is_over = True
                reason = f"the next one would take {expected:.0f} s, and {max(0.0, self._left_s()):.0f} s are left"
                what = f"{len(blocks) - place} of {len(blocks)} paired blocks when {doing}"
                self._leave_out(Omission(what=what, reason=reason))
                return
            await self._take(block)
            self._ahead = blocks[place + 1 :]
            self._look_at_lead(block)
            if not self._has_reported and asyncio.get_running_loop().time() > self._word_due:
                self._report_lead()

    def _lead(self, blocks: Sequence[Sequence[Turn]]) -> Sequence[Sequence[Turn]]:
        """Return the blocks with those first that are likely to bring the first verdict."""
        self._leading = find_promising(blocks, self.estimate, self._plan.arms[0].name)
        return blocks if self._leading is None else put_first(blocks, self._leading)

    def _look_at_lead(self, block: Sequence[Turn]) -> None:
        """Say the first verdict as soon as there is one."""
        if self._has_reported or not block or block[0].place != self._leading:
            return
        self._num_led += len(block[0].prompts)
        if self._num_led >= self._next_look:
            self._next_look = math.ceil(_LOOK_AGAIN * self._num_led)
            verdict = describe_first_verdict(self._directory.read(), self._leading)
            if verdict is not None:
                self._has_reported = True
                self._report_result(verdict)

    def _report_lead(self) -> None:
        """Say what the result is so far."""
        clock = asyncio.get_running_loop().time
        began = clock()
        lead = describe_lead(self._directory.read())
        self.budget.look_s = clock() - began
        self._has_reported |= lead is not None
        self._word_due += self.budget.patience_s
        if lead is not None:
            self._report_result(lead)

    def _report_result(self, text: str) -> None:
        """Say a result, and how long the rest is going to take by now."""
        left_s = self._note_estimate()
        text = f"{text} {left_s / 60:.1f} min are left to measure." if left_s else text
        self._progress.notice(Finding.info("result-so-far", text))

    async def _take(self, block: Sequence[Turn]) -> None:
        """Measure a paired block, and learn how long its turns take."""
        clock = asyncio.get_running_loop().time
        for turn in block:
            check_stop(self._progress)
            await self.experiment.clients[turn.arm].backend.wake()
            began = clock()
            expected_s = self.estimate.expect_first(turn)
            if await self.experiment.take(replace(turn, number=self._number), expected_s=expected_s):
                self.estimate.learn(turn, clock() - began)
                self._done += 1
            self._number += 1

    async def _retake(self, conditions: Sequence[Condition], repeat: int) -> None:
        """Take disturbed turns again, of this repetition and of those before it: so many at most, each a few times.

        Where one server is up at a time, once after the last repetition: that takes one more start of each arm.
        """
        is_once = self._plan.one_at_a_time
        if is_once and repeat < self._plan.repeats:
            return
        labels = [condition.label for condition in conditions]
        turns = [turn for number in range(1, repeat + 1) for turn in self._plan_repetition(conditions, number)]
        allowed = math.ceil(_RETAKEN * sum(turn.repeat == repeat for turn in turns))
        while allowed > 0 and not self._is_over:
            blocks = plan_retakes(find_lost(self._directory.read(), labels), turns, most=allowed)
            while is_once and blocks and self.estimate.sum(chain(*blocks)) > self._left_s():
                blocks.pop()
            if not blocks:
                return
            self._report_progress(chain(*blocks))
            count = sum(map(len, blocks))
            await self._measure(blocks, repeat + 1, f"retaking {count} disturbed turns up to repetition {repeat}")
            allowed = 0 if is_once else allowed - count

    def _leave_out(self, omission: Omission) -> None:
        """Record and say what is not measured for lack of time."""
        self._directory.add_omission(omission)
        self._progress.notice(Finding.info("left-out", f"Left out: {omission.what}: {omission.reason}."))

    def _left_s(self) -> float:
        return self.budget.turns_end - asyncio.get_running_loop().time()

    def _note_estimate(self) -> float:
        """Write down how many seconds the turns ahead are going to take, and return them."""
        ahead = [*chain(*self._ahead), *self._later]
        at_s, left_s = asyncio.get_running_loop().time() - self.budget.began, self.estimate.sum(ahead)
        if ahead or self._done:
            self._directory.add_estimate(Estimate(at_s=at_s, done=self._done, ahead=len(ahead), left_s=left_s))
        return left_s

    def _report_progress(self, turns: Iterable[Turn]) -> None:
        """Report how much there is to do."""
        turns, done = list(turns), self.experiment.num_answers
        self._progress.plan(done + sum(len(turn.prompts) for turn in turns), self.estimate.sum(turns))
        self._progress.step(done)

    @property
    def _progress(self) -> Progress:
        return self.experiment.progress

    @property
    def _plan(self) -> RunPlan:
        return self.experiment.plan

    @property
    def _directory(self) -> RunDirectory:
        return self.experiment.directory


def _name_search(found: Iterable[Condition], left_s: float) -> Omission:
    loads = ", ".join(condition.label for condition in found)
    return Omission(what=f"the loads {loads}, searched for a crossover", reason=f"{max(0.0, left_s):.0f} s are left")
