"""One candidate on one workload under one condition: its readings beside the plain arm's, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add

from draftwise.core import Answer, Condition, Counters, Run, Window

__all__ = ["ALL", "Cell", "Shared", "Unit", "cells"]

ALL = "all"
"""Name of the row that pools every workload: what one setting for all traffic would do."""

Unit = tuple[str, str]
"""Workload and prompt id."""
Asking = tuple[int, int, int]
"""Pass, block and copy: which of the askings of a prompt."""
TurnKey = tuple[str, str, int, int]
"""Workload, condition, pass and block: turns of two arms with one key met the same requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One request that both arms were sent: same prompt, seed and place in the load."""

    unit: Unit
    turns: tuple[str, int, int]
    """Workload, pass and block: the pair of turns in which it was sent."""
    plain: Answer
    candidate: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What two arms answered in the turns that both of them finished.

    A turn that only one arm finished (the run was interrupted between them) has no partner and is left out.
    `workloads` is one name, or all of them for the pooled row.
    """

    workload: str
    workloads: tuple[str, ...]
    condition: Condition
    plain: str
    candidate: str
    answers: Mapping[tuple[str, Unit], Mapping[Asking, Answer]]
    """The measured answers without an error, by arm and unit, then by asking."""
    windows: tuple[Window, ...]
    """Of the turns that both arms finished."""
    turns: Mapping[int, Sequence[Answer]]
    """Every answer of those turns by turn: failed ones and those that only kept the load up as well."""

    @property
    def units(self) -> list[Unit]:
        """Prompts of which both arms answered one and the same asking, in the order of the run."""
        plain = {unit: askings for (arm, unit), askings in self.answers.items() if arm == self.plain}
        return [unit for unit in plain if plain[unit].keys() & self.answers.get((self.candidate, unit), {}).keys()]

    def passes(self, arm: str) -> tuple[int, ...]:
        """Return the passes of which an arm measured something."""
        return tuple(sorted({window.repeat for window in self.windows if window.arm == arm}))

    def only(self, passes: Sequence[int]) -> Cell:
        """Return the cell as if both arms had measured these passes only."""
        windows = [window for window in self.windows if window.repeat in passes]
        return self._with(windows)

    def without(self, turns: frozenset[int]) -> Cell:
        """Return the cell without some turns (by number)."""
        return self._with([window for window in self.windows if window.turn not in turns])

    def _with(self, windows: Sequence[Window]) -> Cell:
        turns = {window.turn: self.turns[window.turn] for window in windows}
        return replace(self, windows=tuple(windows), turns=turns, answers=_by_unit(windows, turns))

    def shared(self) -> list[Shared]:
        """Return the measured requests that both arms were sent, failed ones too, in the order of the run."""
        sides: dict[str, dict[tuple[Unit, Asking], Answer]] = {self.plain: {}, self.candidate: {}}
        for window in self.windows:
            for answer in self.turns[window.turn]:
                if answer.measured:
                    unit = (window.workload, answer.prompt_id)
                    sides[window.arm][unit, (window.repeat, window.block, answer.copy)] = answer
        plain, candidate = sides[self.plain], sides[self.candidate]
        return [
            Shared(unit=unit, turns=(unit[0], *asking[:2]), plain=plain[unit, asking], candidate=answer)
            for (unit, asking), answer in candidate.items()
            if (unit, asking) in plain
        ]

    def requests(self, arm: str) -> list[Answer]:
        """Return the measured requests of an arm, failed ones too."""
        mine = (window.turn for window in self.windows if window.arm == arm)
        return [answer for turn in mine for answer in self.turns[turn] if answer.measured]

    def counters(self, arm: str) -> Counters:
        """Return what an arm's counters grew by."""
        nothing = Counters(generation_tokens=0, prefix_queries=0, prefix_hits=0)
        return reduce(add, (window.counters for window in self.windows if window.arm == arm), nothing)

    def outputs(self, arm: str, unit: Unit) -> list[Answer]:
        """Return an arm's answers to a prompt, in the order of the askings."""
        by_asking = self.answers[arm, unit]
        return [by_asking[key] for key in sorted(by_asking)]

    def pairs(self) -> list[tuple[Window, Window]]:
        """Return the turns of the candidate and of plain that belong together, in the order of the run."""
        plain = {turn_key(window): window for window in self.windows if window.arm == self.plain}
        return [(window, plain[turn_key(window)]) for window in self.windows if window.arm == self.candidate]


def turn_key(window: Window) -> TurnKey:
    """Return what a turn shares with its partner on the other arm."""
    return (window.workload, window.condition, window.repeat, window.block)


def cells(run: Run) -> Iterator[Cell]:
    """Yield a cell per workload, condition and candidate, then, with several workloads, the pooled ones.

    Cells in which no turn has a partner, or no prompt was answered by both arms, are left out. A pooled one takes the
    passes that all workloads have: otherwise those that an adaptive run measured longest would weigh most, or it
    would be no pool at all.
    """
    names = tuple(workload.name for workload in run.plan.workloads)
    groups = [(name, (name,)) for name in names] + ([(ALL, names)] if len(names) > 1 else [])
    plain, *candidates = (arm.name for arm in run.plan.arms)
    windows, turns = _by_place(run), _by_turn(run)
    for (workload, members), condition, candidate in product(groups, run.conditions, candidates):
        parts = [_pair(windows, (plain, candidate), name, condition.label) for name in members]
        common = set.intersection(*({window.repeat for window in part} for part in parts))
        paired = sorted((w for part in parts for w in part if w.repeat in common), key=lambda window: window.turn)
        mine = {window.turn: turns.get(window.turn, ()) for window in paired}
        cell = Cell(
            workload=workload,
            workloads=members,
            condition=condition,
            plain=plain,
            candidate=candidate,
            answers=_by_unit(paired, mine),
            windows=tuple(paired),
            turns=mine,
        )
        if cell.units:
            yield cell


def _pair(
    windows: Mapping[tuple[str, str, str], Sequence[Window]], arms: tuple[str, str], workload: str, condition: str
) -> list[Window]:
    """Return the turns of one workload under one condition that both arms finished."""
    sides = [windows.get((arm, workload, condition), ()) for arm in arms]
    plain, candidate = ({turn_key(window) for window in side} for side in sides)
    return [window for side in sides for window in side if turn_key(window) in plain & candidate]


def _by_place(run: Run) -> dict[tuple[str, str, str], list[Window]]:
    """Return the turns by arm, workload and condition."""
    found: dict[tuple[str, str, str], list[Window]] = {}
    for window in run.windows:
        found.setdefault((window.arm, window.workload, window.condition), []).append(window)
    return found


def _by_turn(run: Run) -> dict[int, list[Answer]]:
    found: dict[int, list[Answer]] = {}
    for answer in run.answers:
        found.setdefault(answer.turn, []).append(answer)
    return found


def _by_unit(
    windows: Sequence[Window], turns: Mapping[int, Sequence[Answer]]
) -> dict[tuple[str, Unit], dict[Asking, Answer]]:
    found: dict[tuple[str, Unit], dict[Asking, Answer]] = {}
    for window in windows:
        for answer in turns[window.turn]:
            if answer.measured and answer.error is None and answer.timing.chunks:
                mine = found.setdefault((window.arm, (window.workload, answer.prompt_id)), {})
                mine[window.repeat, window.block, answer.copy] = answer
    return found
