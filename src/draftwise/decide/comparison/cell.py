"""One candidate on one workload under one condition: its requests beside the baseline's, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add

from draftwise.core import Answer, Condition, Counters, Run, TurnRecord

__all__ = ["ALL", "Cell", "PairedRequest", "Unit", "make_cells"]

ALL = "all"
"""Name of the row that pools every workload: what one setting for all traffic would do."""

Unit = tuple[str, str]
"""Workload and prompt id."""
Attempt = tuple[int, int, int]
"""Repetition, block and copy: which of the requests that send a prompt."""
BlockKey = tuple[str, str, int, int]
"""Workload, condition, repetition and block: turns of two arms with one key are a paired block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRequest:
    """One request that both arms were sent: same prompt, seed and place in the load."""

    unit: Unit
    block: tuple[str, int, int]
    """Workload, repetition and number of the paired block in which it was sent."""
    baseline: Answer
    candidate: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What two arms answered in the blocks that both of them finished.

    A turn that only one arm finished (the run was interrupted between them) has no partner and is left out.
    `workloads` is one name, or all of them for the pooled row.
    """

    workload: str
    workloads: tuple[str, ...]
    condition: Condition
    baseline: str
    candidate: str
    answers: Mapping[tuple[str, Unit], Mapping[Attempt, Answer]]
    """The measured answers without an error, by arm and unit, then by attempt."""
    turns: tuple[TurnRecord, ...]
    """Those of blocks that both arms finished."""
    answers_by_turn: Mapping[int, Sequence[Answer]]
    """Every answer of those turns: failed ones and those that only kept the load up as well."""

    @property
    def units(self) -> list[Unit]:
        """Prompts of which both arms answered one and the same attempt, in the order of the run."""
        baseline = {unit: attempts for (arm, unit), attempts in self.answers.items() if arm == self.baseline}
        return [
            unit for unit in baseline if baseline[unit].keys() & self.answers.get((self.candidate, unit), {}).keys()
        ]

    @property
    def repetitions(self) -> tuple[int, ...]:
        """The repetitions of which both arms measured something."""
        return tuple(sorted({turn.repeat for turn in self.turns if turn.arm == self.candidate}))

    def keep_repetitions(self, repetitions: Sequence[int]) -> Cell:
        """Return the cell as if both arms had measured these repetitions only."""
        return self._with([turn for turn in self.turns if turn.repeat in repetitions])

    def _with(self, turns: Sequence[TurnRecord]) -> Cell:
        by_turn = {turn.turn: self.answers_by_turn[turn.turn] for turn in turns}
        return replace(self, turns=tuple(turns), answers_by_turn=by_turn, answers=_group_by_unit(turns, by_turn))

    def pair_requests(self) -> list[PairedRequest]:
        """Return the measured requests that both arms were sent, failed ones too, in the order of the run."""
        sides: dict[str, dict[tuple[Unit, Attempt], Answer]] = {self.baseline: {}, self.candidate: {}}
        for turn in self.turns:
            for answer in self.answers_by_turn[turn.turn]:
                if answer.measured:
                    unit = (turn.workload, answer.prompt_id)
                    sides[turn.arm][unit, (turn.repeat, turn.block, answer.copy)] = answer
        baseline, candidate = sides[self.baseline], sides[self.candidate]
        return [
            PairedRequest(unit=unit, block=(unit[0], *attempt[:2]), baseline=baseline[unit, attempt], candidate=answer)
            for (unit, attempt), answer in candidate.items()
            if (unit, attempt) in baseline
        ]

    def list_requests(self, arm: str) -> list[Answer]:
        """Return the measured requests of an arm, failed ones too."""
        mine = (turn.turn for turn in self.turns if turn.arm == arm)
        return [answer for turn in mine for answer in self.answers_by_turn[turn] if answer.measured]

    def sum_counters(self, arm: str) -> Counters:
        """Return what an arm's counters grew by."""
        nothing = Counters(generation_tokens=0, prefix_queries=0, prefix_hits=0)
        return reduce(add, (turn.counters for turn in self.turns if turn.arm == arm), nothing)

    def list_outputs(self, arm: str, unit: Unit) -> list[Answer]:
        """Return an arm's answers to a prompt, in the order of the attempts."""
        by_attempt = self.answers[arm, unit]
        return [by_attempt[key] for key in sorted(by_attempt)]

    def pair_turns(self) -> list[tuple[TurnRecord, TurnRecord]]:
        """Return the candidate's and the baseline's turn of each paired block, in the order of the run."""
        baseline = {_block_key(turn): turn for turn in self.turns if turn.arm == self.baseline}
        return [(turn, baseline[_block_key(turn)]) for turn in self.turns if turn.arm == self.candidate]


def make_cells(run: Run) -> Iterator[Cell]:
    """Yield a cell per workload, condition and candidate, then, with several workloads, the pooled ones.

    Cells in which no turn has a partner, or no prompt was answered by both arms, are left out. A pooled one takes the
    repetitions that all workloads have: otherwise those that an adaptive run measured longest would weigh most, or it
    would be no pool at all.
    """
    names = tuple(workload.name for workload in run.plan.workloads)
    groups = [(name, (name,)) for name in names] + ([(ALL, names)] if len(names) > 1 else [])
    baseline, *candidates = (arm.name for arm in run.plan.arms)
    turns, answers = _group_by_place(run), _group_by_turn(run)
    for (workload, members), condition, candidate in product(groups, run.conditions, candidates):
        parts = [_pair(turns, (baseline, candidate), name, condition.label) for name in members]
        common = set.intersection(*({turn.repeat for turn in part} for part in parts))
        paired = sorted((t for part in parts for t in part if t.repeat in common), key=lambda turn: turn.turn)
        mine = {turn.turn: answers.get(turn.turn, ()) for turn in paired}
        cell = Cell(
            workload=workload,
            workloads=members,
            condition=condition,
            baseline=baseline,
            candidate=candidate,
            answers=_group_by_unit(paired, mine),
            turns=tuple(paired),
            answers_by_turn=mine,
        )
        if cell.units:
            yield cell


def _block_key(turn: TurnRecord) -> BlockKey:
    """Return what a turn has in common with its partner on the other arm."""
    return (turn.workload, turn.condition, turn.repeat, turn.block)


def _pair(
    turns: Mapping[tuple[str, str, str], Sequence[TurnRecord]], arms: tuple[str, str], workload: str, condition: str
) -> list[TurnRecord]:
    """Return the turns of one workload under one condition whose block both arms finished."""
    sides = [turns.get((arm, workload, condition), ()) for arm in arms]
    baseline, candidate = ({_block_key(turn) for turn in side} for side in sides)
    return [turn for side in sides for turn in side if _block_key(turn) in baseline & candidate]


def _group_by_place(run: Run) -> dict[tuple[str, str, str], list[TurnRecord]]:
    """Return the turns by arm, workload and condition."""
    found: dict[tuple[str, str, str], list[TurnRecord]] = {}
    for turn in run.turns:
        found.setdefault((turn.arm, turn.workload, turn.condition), []).append(turn)
    return found


def _group_by_turn(run: Run) -> dict[int, list[Answer]]:
    found: dict[int, list[Answer]] = {}
    for answer in run.answers:
        found.setdefault(answer.turn, []).append(answer)
    return found


def _group_by_unit(
    turns: Sequence[TurnRecord], answers: Mapping[int, Sequence[Answer]]
) -> dict[tuple[str, Unit], dict[Attempt, Answer]]:
    found: dict[tuple[str, Unit], dict[Attempt, Answer]] = {}
    for turn in turns:
        for answer in answers[turn.turn]:
            if answer.measured and answer.error is None and answer.timing.chunks:
                mine = found.setdefault((turn.arm, (turn.workload, answer.prompt_id)), {})
                mine[turn.repeat, turn.block, answer.copy] = answer
    return found
