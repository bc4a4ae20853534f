"""Goes over the grid of a run pass by pass, leaves out what is settled, and searches where speculation stops paying."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.core import Condition, RunPlan
from draftwise.measure.adaptive import FIRST_LOOK, find_settled, next_conditions
from draftwise.measure.experiment import Experiment
from draftwise.measure.run_directory import RunDirectory
from draftwise.measure.schedule import Cell, Turn, pass_over

__all__ = ["Sweep"]


@dataclass(slots=True, kw_only=True)
class Sweep:
    """Measures everything that a plan asks for.

    Args:
        ends_at: monotonic time after which no load is added any more; None for no limit.
    """

    experiment: Experiment
    ends_at: float | None = None
    _number: int = 0

    async def run(self) -> None:
        """Measure the plan's grid, then, in an adaptive run, loads around each crossover.

        Raises:
            BackendError: a server broke; what was measured is on disk.
            StorageError: the disk is full; what was measured is on disk.
        """
        self._number = self._directory.next_number()
        await self._pass_over(self._plan.conditions)
        for condition in self._directory.read().added:
            await self._pass_over([condition])
        while self._plan.adaptive and (self.ends_at is None or time.monotonic() < self.ends_at):
            conditions = next_conditions(self._directory.read())
            if not conditions:
                break
            for condition in conditions:
                self._directory.add_condition(condition)
            await self._pass_over(conditions)

    async def _pass_over(self, conditions: Sequence[Condition]) -> None:
        """Measure all passes under some conditions."""
        for repeat in range(1, self._plan.repeats + 1):
            turns = self._turns(conditions, repeat)
            missing = [turn for turn in turns if not self.experiment.has(turn)]
            self._tell(conditions, repeat)
            await self.experiment.run(missing)
            if missing and self._plan.adaptive and FIRST_LOOK <= repeat < self._plan.repeats:
                for cell in find_settled(self._directory.read(), conditions, repeat):
                    self._directory.add_settled(cell)

    def _turns(self, conditions: Sequence[Condition], repeat: int) -> list[Turn]:
        turns = list(
            pass_over(self._plan, conditions, repeat, without=self._settled_before(repeat), number=self._number)
        )
        self._number += len(turns)
        return turns

    def _settled_before(self, repeat: int) -> set[Cell]:
        settled = self._directory.read_settled()
        return {(each.workload, each.condition, each.candidate) for each in settled if each.passes < repeat}

    def _tell(self, conditions: Sequence[Condition], repeat: int) -> None:
        """Say how much there is to do from this pass on."""
        later = [
            turn
            for number in range(repeat, self._plan.repeats + 1)
            for turn in pass_over(self._plan, conditions, number, without=self._settled_before(repeat))
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
