"""Whether two arms said the same, where they part, and whether rounding alone can explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from draftwise.core import Answer, Divergence
from draftwise.measure.comparison.cell import Cell, Unit
from draftwise.measure.load.client import Client

__all__ = ["Difference", "examine", "find_difference", "find_differences", "is_tie"]


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


async def examine(difference: Difference, plain: Client, candidate: Client) -> Divergence:
    """Return what both servers think of the position where two answers part.

    Both are asked again for the next token after the prompt and all shared output; a prefill, so that neither
    answer depends on how the position was reached.
    """
    answers, position = (difference.plain, difference.candidate), difference.position
    tokens = [None if position is None else _token_at(answer, position) for answer in answers]
    prompt = difference.plain.prompt_token_ids
    views: list[dict[str, float] | None] = [None, None]
    if prompt and position is not None:
        shared = [*prompt, *difference.plain.token_ids[:position]]
        views = [await client.next_two(shared) for client in (plain, candidate)]
    told = [view for view in views if view is not None]
    return Divergence(
        workload=difference.unit[0],
        prompt_id=difference.unit[1],
        candidate=difference.candidate.arm,
        position=position or 0,
        plain_token=tokens[0],
        candidate_token=tokens[1],
        gap=min((gap for view in told if (gap := _gap(view)) is not None), default=None),
        condition=difference.plain.condition,
        among_best=_among_best(tokens, told),
    )


def _token_at(answer: Answer, position: int) -> int | None:
    return answer.token_ids[position] if position < len(answer.token_ids) else None


def _gap(view: dict[str, float]) -> float | None:
    """Return how far the best token is ahead; None where two tokens of equal text came back as one."""
    best = sorted(view.values(), reverse=True)
    return best[0] - best[1] if len(best) > 1 else None


def _among_best(tokens: Sequence[int | None], views: Sequence[dict[str, float]]) -> bool | None:
    """Return whether the tokens are among all views' best, where views name tokens by id (`token_id:17`)."""
    if not views or None in tokens or not all(key.startswith("token_id:") for view in views for key in view):
        return None
    wanted = {f"token_id:{token}" for token in tokens}
    return all(wanted <= view.keys() for view in views)


def is_tie(divergence: Divergence, tie_gap: float) -> bool:
    """Return whether the precision of the arithmetic alone can have swapped the two tokens."""
    return divergence.gap is not None and divergence.gap <= tie_gap and divergence.among_best is not False
