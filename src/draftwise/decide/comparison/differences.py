"""Whether two arms said the same, where they part, and whether rounding alone can explain it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from draftwise.core import Answer, Divergence
from draftwise.decide.comparison.cell import Cell, Unit

__all__ = ["Difference", "find_difference", "find_differences", "is_tie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two greedy answers to one prompt that are not the same."""

    unit: Unit
    plain: Answer
    candidate: Answer
    position: int | None
    """Tokens that both share; None where a server gives no token ids."""

    @property
    def excerpt(self) -> str:
        """The last shared characters and what follows on either side."""
        a, b = self.plain.text, self.candidate.text
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        return f"after {a[max(0, same - 24) : same]!r} plain says {a[same : same + 16]!r}, it {b[same : same + 16]!r}"


def find_difference(unit: Unit, plain: Answer, candidate: Answer) -> Difference | None:
    """Return how an answer differs from the plain one, None when token for token equal."""
    a, b = plain.token_ids, candidate.token_ids
    if not (a and b):
        same = plain.text == candidate.text
        return None if same else Difference(unit=unit, plain=plain, candidate=candidate, position=None)
    if a == b:
        return None
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return Difference(unit=unit, plain=plain, candidate=candidate, position=shared)


def find_differences(cell: Cell) -> list[Difference]:
    """Return, for each prompt that the candidate ever answered as plain never did, the first such answer.

    The plain server may itself waver between passes (a cached prefix is computed in other shapes), so an answer
    counts as different only when it is none of plain's; it is then compared with plain's first.
    """
    found = []
    for unit in cell.units:
        plain = cell.outputs(cell.plain, unit)
        for answer in cell.outputs(cell.candidate, unit):
            differences = [find_difference(unit, reference, answer) for reference in plain]
            if None not in differences:
                found.append(differences[0])
                break
    return [each for each in found if each is not None]


def is_tie(divergence: Divergence, tie_gap: float) -> bool:
    """Return whether the precision of the arithmetic alone can have swapped the two tokens."""
    return divergence.gap is not None and divergence.gap <= tie_gap and divergence.among_best is not False
