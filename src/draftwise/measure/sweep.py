"""Repeats the grid of a run, stops settled cells early, and searches the load where speculation stops paying."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from draftwise.core import Condition, RunPlan, Settled
from draftwise.measure.adaptive import FIRST_ANALYSIS, find_settled, next_conditions
from draftwise.measure.experiment import Experiment
from draftwise.runs import RunDirectory
from draftwise.runs.schedule import Turn, plan_turns

__all__ = ["Sweep"]

_MOST_ROUNDS = 6
"""Searches for loads to add; each halves what is not known of a crossover, until only noise is left."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Measures everything that a plan asks for.

    Args:
        ends_at: monotonic time after which no load is added any more.
    """

    experiment: Experiment
    ends_at: float = math.inf
    _number: int = field(default=0, init=False)

    async def run(self) -> None:
        """Measure the plan's grid, then, in an adaptive run, loads around each crossover.

        Raises:
            BackendError: a server broke; what was measured is on disk.
            StorageError: the disk is full; what was measured is on disk.
        """
        self._number = self._directory.next_number()
        await self._repeat_all(self._plan.conditions)
        for condition in self._directory.read().added:
            await self._repeat_all([condition])
        if self._plan.adaptive:
            for _ in range(_MOST_ROUNDS - len(self._directory.read().added)):
                if time.monotonic() > self.ends_at or not (found := next_conditions(self._directory.read())):
                    break
                self._add(found)
                await self._repeat_all(list(found))

    def _add(self, found: Mapping[Condition, Container[tuple[str, str]]]) -> None:
        """Record which loads are added, and that cells away from their crossover are not measured there."""
        for condition, near in found.items():
            self._directory.add_condition(condition)
            for workload, arm in product(self._plan.workloads, self._plan.arms[1:]):
                if (workload.name, arm.name) not in near:
                    self._directory.add_settled(
                        Settled(workload=workload.name, condition=condition.label, candidate=arm.name, passes=0)
                    )

    async def _repeat_all(self, conditions: Sequence[Condition]) -> None:
        """Measure all repetitions under some conditions."""
        for repeat in range(1, self._plan.repeats + 1):
            turns = self._turns(conditions, repeat)
            missing = [turn for turn in turns if not self.experiment.has(turn)]
            self._report_progress(conditions, repeat)
            await self.experiment.run(missing)
            if missing and self._plan.adaptive and FIRST_ANALYSIS <= repeat < self._plan.repeats:
                for cell in find_settled(self._directory.read(), conditions, repeat):
                    self._directory.add_settled(cell)

    def _turns(self, conditions: Sequence[Condition], repeat: int) -> list[Turn]:
        run = self._directory.read()
        turns = list(
            plan_turns(self._plan, conditions, repeat, added=run.added, settled=run.settled, number=self._number)
        )
        self._number += len(turns)
        return turns

    def _report_progress(self, conditions: Sequence[Condition], repeat: int) -> None:
        """Report how much there is to do from this repetition on."""
        run = self._directory.read()
        later = [
            turn
            for number in range(repeat, self._plan.repeats + 1)
            for turn in plan_turns(self._plan, conditions, number, added=run.added, settled=run.settled)
        ]
        done = self.experiment.num_answers
        left = sum(len(turn.prompts) for turn in later if not self.experiment.has(turn))
        self.experiment.progress.start(done + left, done)

    @property
    def _plan(self) -> RunPlan:
        return self.experiment.plan

    @property
    def _directory(self) -> RunDirectory:
        return self.experiment.directory
