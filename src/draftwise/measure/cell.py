"""One candidate on one workload: its readings beside the plain arm's, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from draftwise.core import Answer, Counters, Run, Timing, Window
from draftwise.measure.statistics import Array

__all__ = ["ALL", "Cell", "cells"]

ALL = "all"
"""Name of the row that pools every workload: what one setting for all traffic would do."""

Unit = tuple[str, str]
"""Workload and prompt id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The error-free answers of two arms to the prompts that both answered, and their counter windows.

    `workloads` is one name, or all of them for the pooled row.
    """

    workload: str
    workloads: tuple[str, ...]
    plain: str
    candidate: str
    answers: dict[tuple[str, Unit], dict[int, Answer]]
    """By arm and unit, then by pass."""
    windows: tuple[Window, ...]

    @property
    def units(self) -> list[Unit]:
        """Prompts that both arms answered in a pass, in the order of the run."""
        plain = (unit for arm, unit in self.answers if arm == self.plain)
        return [unit for unit in plain if (self.candidate, unit) in self.answers]

    def passes(self, arm: str) -> tuple[int, ...]:
        """Return the passes of which an arm measured something."""
        return tuple(sorted({window.repeat for window in self.windows if window.arm == arm}))

    def only(self, passes: Sequence[int]) -> Cell:
        """Return the cell as if both arms had measured these passes only."""
        answers = {
            (arm, unit): kept
            for (arm, unit), by_pass in self.answers.items()
            if (kept := {n: answer for n, answer in by_pass.items() if n in passes})
        }
        windows = tuple(window for window in self.windows if window.repeat in passes)
        return replace(self, answers=answers, windows=windows)

    def readings(self, arm: str, read: Callable[[Timing], float | None]) -> Array:
        """Return [units, passes of the arm] a reading of every answer, NaN where there is none."""

        def value(answer: Answer | None) -> float:
            reading = None if answer is None else read(answer.timing)
            return float("nan") if reading is None else reading

        passes = self.passes(arm)
        rows = [[value(self.answers[arm, unit].get(n)) for n in passes] for unit in self.units]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(passes))

    def counters(self, arm: str, *, workload: str | None = None) -> Counters:
        """Return what an arm's counters grew by, over everything or over one workload."""
        nothing = Counters(generation_tokens=0, prefix_queries=0, prefix_hits=0)
        mine = (w for w in self.windows if w.arm == arm and workload in (None, w.workload))
        return reduce(add, (window.counters for window in mine), nothing)

    def outputs(self, arm: str, unit: Unit) -> list[Answer]:
        """Return an arm's answers to a prompt, pass by pass."""
        by_pass = self.answers[arm, unit]
        return [by_pass[n] for n in sorted(by_pass)]


def cells(run: Run) -> Iterator[Cell]:
    """Yield a cell per workload and candidate, then, with several workloads, the pooled ones."""
    names = tuple(workload.name for workload in run.plan.workloads)
    groups = [(name, (name,)) for name in names] + ([(ALL, names)] if len(names) > 1 else [])
    plain, *candidates = (arm.name for arm in run.plan.arms)
    for workload, members in groups:
        for candidate in candidates:
            arms = (plain, candidate)
            answers: dict[tuple[str, Unit], dict[int, Answer]] = {}
            for answer in run.answers:
                if answer.arm in arms and answer.workload in members and answer.error is None:
                    unit = (answer.workload, answer.prompt_id)
                    answers.setdefault((answer.arm, unit), {})[answer.repeat] = answer
            windows = tuple(w for w in run.windows if w.arm in arms and w.workload in members)
            cell = Cell(
                workload=workload,
                workloads=members,
                plain=plain,
                candidate=candidate,
                answers=answers,
                windows=windows,
            )
            if cell.units:
                yield cell
