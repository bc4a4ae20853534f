"""Whether two arms gave the same output, where they part, and whether rounding alone can explain it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from draftwise.core import Answer, Divergence, Run
from draftwise.decide.comparison.cell import Cell, Unit

__all__ = [
    "OutputDifference",
    "compare_outputs",
    "find_difference",
    "find_differences",
    "has_synthetic_acceptance",
    "is_tie",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDifference:
    """Two greedy answers to one prompt that are not the same."""

    unit: Unit
    baseline: Answer
    candidate: Answer
    position: int | None
    """Tokens that both share; None where a server gives no token ids."""

    @property
    def excerpt(self) -> str:
        """The last shared characters and what follows on either side."""
        a, b = self.baseline.text, self.candidate.text
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        return (
            f"after {a[max(0, same - 24) : same]!r} the baseline says {a[same : same + 16]!r}, the candidate "
            f"{b[same : same + 16]!r}"
        )


def find_difference(unit: Unit, baseline: Answer, candidate: Answer) -> OutputDifference | None:
    """Return how an answer differs from the baseline's, None when token for token equal."""
    a, b = baseline.token_ids, candidate.token_ids
    if not (a and b):
        same = baseline.text == candidate.text
        return None if same else OutputDifference(unit=unit, baseline=baseline, candidate=candidate, position=None)
    if a == b:
        return None
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return OutputDifference(unit=unit, baseline=baseline, candidate=candidate, position=shared)


def has_synthetic_acceptance(run: Run, arm: str) -> bool:
    """Return whether an arm's acceptance is synthetic, so that its text is not the model's."""
    return any(each.has_synthetic_acceptance for each in run.plan.arms if each.name == arm)


def compare_outputs(run: Run, cell: Cell) -> list[OutputDifference] | None:
    """Return the prompts whose output differs; None where outputs cannot be compared one by one.

    That is above temperature 0, and where acceptance is synthetic.
    """
    if cell.condition.temperature > 0 or has_synthetic_acceptance(run, cell.candidate):
        return None
    return find_differences(cell)


def find_differences(cell: Cell) -> list[OutputDifference]:
    """Return, for each prompt to which the candidate ever gave an answer that the baseline never gave, the first one.

    The baseline itself may change its answer between repetitions (a cached prefix is computed in other shapes), so an
    answer counts as different only when it is none of the baseline's; it is then compared with the baseline's first.
    """
    found = []
    for unit in cell.units:
        baseline = cell.list_outputs(cell.baseline, unit)
        for answer in cell.list_outputs(cell.candidate, unit):
            differences = [find_difference(unit, reference, answer) for reference in baseline]
            if None not in differences:
                found.append(differences[0])
                break
    return [each for each in found if each is not None]


def is_tie(divergence: Divergence, tie_gap: float) -> bool:
    """Return whether the precision of the arithmetic alone can have swapped the two tokens."""
    return divergence.gap is not None and divergence.gap <= tie_gap and divergence.among_best is not False
