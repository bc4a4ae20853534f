"""Compares one candidate's requests with the baseline's, on one workload and condition, and finds differing outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product, takewhile

from draftwise.core import Answer, Condition, Counters, Run, TurnRecord
from draftwise.core.comparison import ALL
from draftwise.core.grouping import group_by

Unit = tuple[str, str]
"""Workload and prompt id."""
Attempt = tuple[int, int, int, int]
"""Repetition, block, attempt and copy: one of the requests that send a prompt."""
Requests = Mapping[tuple[Unit, Attempt], Answer]
"""An arm's requests, in the order of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRequest:
    """A request sent to both arms with the same prompt, seed and place in the load."""

    unit: Unit
    block: tuple[str, int, int]
    """Workload, repetition and number of its paired block. With one server at a time, a block holds all answers of both
    arms, on all workloads, between two server starts each, because they share the machine's state. Its name then is no
    workload's, followed by the numbers of the two stretches."""
    baseline: Answer
    candidate: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """Two greedy answers to one prompt that differ."""

    unit: Unit
    baseline: Answer
    candidate: Answer
    position: int | None
    """Number of shared leading tokens; None if a server returns no token ids."""

    @property
    def shared_chars(self) -> int:
        """Number of shared leading characters."""
        pairs = zip(self.baseline.text, self.candidate.text, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @property
    def excerpt(self) -> str:
        """The last shared characters, and what follows on each side."""
        a, b, same = self.baseline.text, self.candidate.text, self.shared_chars
        return (
            f"after {a[max(0, same - 24) : same]!r} the baseline says {a[same : same + 16]!r}, the candidate "
            f"{b[same : same + 16]!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Two arms' answers in the blocks that both completed.

    A turn that only one arm completed, because the run was interrupted, has no partner and is left out. `workloads` is
    one name, or all of them for the pooled row.
    """

    workload: str
    workloads: tuple[str, ...]
    condition: Condition
    baseline: str
    candidate: str
    turns: Sequence[TurnRecord]
    """Turns of blocks that both arms completed."""
    answers_by_turn: Mapping[int, Sequence[Answer]]
    """All answers of those turns, including failed and background ones."""
    repetitions: tuple[int, ...]
    """Repetitions in which both arms measured something."""
    requests: Mapping[str, Sequence[Answer]]
    """Measured requests of each arm, including failed ones."""
    paired: Sequence[PairedRequest]
    """Measured requests sent to both arms, including failed ones, in the order of the run."""
    outputs: Mapping[tuple[str, Unit], Sequence[Answer]]
    """Measured answers without errors, by arm and unit, in the order of attempts."""
    units: Sequence[Unit]
    """Prompts for which both arms answered the same attempt, in the order of the run."""
    counters: Mapping[str, Counters]
    """Growth of each arm's counters."""
    is_one_at_a_time: bool
    """Whether one server was up at a time."""
    differences: Sequence[OutputDifference] | None
    """Prompts whose output differs from the baseline's. None: outputs are not compared, above temperature 0 or with
    synthetic acceptance."""

    def keep_repetitions(self, repetitions: Sequence[int]) -> Cell:
        """Return the cell restricted to these repetitions."""
        return self.keep_blocks(lambda turn: turn.repeat in repetitions)

    def keep_blocks(self, is_wanted: Callable[[TurnRecord], bool]) -> Cell:
        """Return the cell restricted to paired blocks whose candidate turn passes the test."""
        wanted = {turn.attempt_key for turn in self.turns if turn.arm == self.candidate and is_wanted(turn)}
        turns = [turn for turn in self.turns if turn.attempt_key in wanted]
        names, arms = (self.workload, self.workloads), (self.baseline, self.candidate)
        comparable = self.differences is not None
        return _make_cell(
            names,
            self.condition,
            arms,
            turns,
            self.answers_by_turn,
            comparable=comparable,
            one_at_a_time=self.is_one_at_a_time,
        )

    def pair_turns(self) -> list[tuple[TurnRecord, TurnRecord]]:
        """Return the candidate's and the baseline's turn of each paired block, in the order of the run."""
        baseline = {turn.attempt_key: turn for turn in self.turns if turn.arm == self.baseline}
        return [(turn, baseline[turn.attempt_key]) for turn in self.turns if turn.arm == self.candidate]


def make_cells(run: Run) -> list[Cell]:
    """Return a cell per workload, condition and candidate, followed by pooled cells if there are several workloads.

    Leaves out cells in which no turn has a partner or both arms answered no common prompt. A pooled cell uses only
    repetitions that all workloads have; otherwise, the workloads that an adaptive run measured longest would dominate.
    """
    names = tuple(workload.name for workload in run.plan.workloads)
    groups = [(name, (name,)) for name in names] + ([(ALL, names)] if len(names) > 1 else [])
    baseline, *candidates = (arm.name for arm in run.plan.arms)
    synthetic = run.plan.synthetic
    turns = group_by(lambda turn: (turn.arm, turn.workload, turn.condition), run.turns)
    answers = group_by(lambda answer: answer.turn, run.answers)
    cells = []
    for group, condition, candidate in product(groups, run.conditions, candidates):
        arms = (baseline, candidate)
        parts = [_pair(turns, arms, name, condition.label) for name in group[1]]
        common = set.intersection(*({turn.repeat for turn in part} for part in parts))
        paired = sorted((turn for part in parts for turn in part if turn.repeat in common), key=lambda turn: turn.turn)
        comparable = condition.temperature == 0 and candidate not in synthetic
        cells.append(
            _make_cell(
                group,
                condition,
                arms,
                paired,
                answers,
                comparable=comparable,
                one_at_a_time=run.plan.one_at_a_time,
            )
        )
    return [cell for cell in cells if cell.units]


def _make_cell(
    names: tuple[str, tuple[str, ...]],
    condition: Condition,
    arms: tuple[str, str],
    turns: Sequence[TurnRecord],
    answers: Mapping[int, Sequence[Answer]],
    *,
    comparable: bool,
    one_at_a_time: bool,
) -> Cell:
    by_turn = {turn.turn: answers.get(turn.turn, ()) for turn in turns}
    stretches = _number_stretches(turns) if one_at_a_time else {}
    baseline, candidate = (_list_requests(turns, by_turn, arm) for arm in arms)
    answered, ours = _group_by_unit(baseline), _group_by_unit(candidate)
    outputs = {
        (arm, unit): [attempts[key] for key in sorted(attempts)]
        for arm, side in zip(arms, (answered, ours), strict=True)
        for unit, attempts in side.items()
    }
    units = [unit for unit, attempts in answered.items() if attempts.keys() & ours.get(unit, {}).keys()]
    return Cell(
        workload=names[0],
        workloads=names[1],
        condition=condition,
        baseline=arms[0],
        candidate=arms[1],
        turns=turns,
        answers_by_turn=by_turn,
        repetitions=tuple(sorted({turn.repeat for turn in turns if turn.arm == arms[1]})),
        requests={arm: list(side.values()) for arm, side in zip(arms, (baseline, candidate), strict=True)},
        paired=_pair_requests(baseline, candidate, stretches),
        is_one_at_a_time=one_at_a_time,
        outputs=outputs,
        units=units,
        counters={arm: Counters.total(turn.counters for turn in turns if turn.arm == arm) for arm in arms},
        differences=_find_differences(units, outputs, arms) if comparable else None,
    )


def _pair(
    turns: Mapping[tuple[str, str, str], Sequence[TurnRecord]], arms: tuple[str, str], workload: str, condition: str
) -> list[TurnRecord]:
    """Return the turns of one workload under one condition that have a partner on the other arm."""
    sides = [turns.get((arm, workload, condition), ()) for arm in arms]
    baseline, candidate = ({turn.attempt_key for turn in side} for side in sides)
    return [turn for side in sides for turn in side if turn.attempt_key in baseline & candidate]


def _list_requests(turns: Sequence[TurnRecord], answers: Mapping[int, Sequence[Answer]], arm: str) -> Requests:
    """Return the measured requests of an arm, failed ones too."""
    return {
        ((turn.workload, answer.prompt_id), (turn.repeat, turn.block, turn.attempt, answer.copy)): answer
        for turn in turns
        if turn.arm == arm
        for answer in answers[turn.turn]
        if answer.measured
    }


def _number_stretches(turns: Sequence[TurnRecord]) -> dict[int, int]:
    """Return, by turn, the number of the stretch in which its server was up, where one is at a time."""
    ordered = sorted(turns, key=lambda turn: turn.turn)
    stretches = (list(stretch) for _, stretch in groupby(ordered, key=lambda turn: turn.arm))
    return {turn.turn: number for number, stretch in enumerate(stretches) for turn in stretch}


def _pair_requests(baseline: Requests, candidate: Requests, stretches: Mapping[int, int]) -> list[PairedRequest]:
    def block(unit: Unit, attempt: Attempt, theirs: Answer, ours: Answer) -> tuple[str, int, int]:
        return ("", stretches[theirs.turn], stretches[ours.turn]) if stretches else (unit[0], *attempt[:2])

    return [
        PairedRequest(unit=unit, block=block(unit, attempt, theirs, ours), baseline=theirs, candidate=ours)
        for (unit, attempt), ours in candidate.items()
        if (theirs := baseline.get((unit, attempt))) is not None
    ]


def _group_by_unit(requests: Requests) -> dict[Unit, dict[Attempt, Answer]]:
    """Return the answers without an error by prompt."""
    found: dict[Unit, dict[Attempt, Answer]] = {}
    for (unit, attempt), answer in requests.items():
        if answer.error is None and answer.timing.chunks:
            found.setdefault(unit, {})[attempt] = answer
    return found


def _find_differences(
    units: Sequence[Unit], outputs: Mapping[tuple[str, Unit], Sequence[Answer]], arms: tuple[str, str]
) -> list[OutputDifference]:
    """Return, for each prompt to which the candidate ever gave an answer that the baseline never gave, the first one.

    The baseline itself may change its answer between repetitions (a cached prefix is computed in other shapes), so an
    answer counts as different only if none of the baseline's equals it; then it is compared with their first.
    """
    found = []
    for unit in units:
        baseline, candidate = (outputs[arm, unit] for arm in arms)
        for answer in candidate:
            differences = [find_difference(unit, reference, answer) for reference in baseline]
            if None not in differences:
                found.append(differences[0])
                break
    return [each for each in found if each is not None]


def find_difference(unit: Unit, baseline: Answer, candidate: Answer) -> OutputDifference | None:
    """Return how an answer differs from the baseline's; None if they are equal token for token."""
    a, b = baseline.token_ids, candidate.token_ids
    if not (a and b):
        same = baseline.text == candidate.text
        return None if same else OutputDifference(unit=unit, baseline=baseline, candidate=candidate, position=None)
    if a == b:
        return None
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return OutputDifference(unit=unit, baseline=baseline, candidate=candidate, position=shared)
