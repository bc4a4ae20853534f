"""What an engine drafted and wrote for a prompt, and whether two engines did the same.

A draft depends on the text before it and on nothing else. So two engines that run the same drafter must make the same
draft wherever both have written the same text, up to rounding: where two logits are a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Answer", "Comparison", "Counts", "Gaps", "compare", "count"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine made of one prompt."""

    tokens: Sequence[int]
    drafts: dict[int, list[int]]
    """Guesses, by how many output tokens were known when they were made."""


class Gaps(Protocol):
    """How far apart the two largest logits of a choice were; None where no logits decided."""

    def of_guess(self, position: int, index: int) -> float | None:
        """Return it for guess `index` of the draft made at `position`."""

    def of_token(self, position: int) -> float | None:
        """Return it for the output token at `position`."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of speculation, over drafts that max_tokens leaves room for."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: tuple[int, ...]
    distinct_per_pos: tuple[int, ...]
    """How many different tokens were guessed; a drafter that always says the same would prove little."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """How the answers of two engines compare."""

    num_prompts: int = 0
    equal_outputs: int = 0
    drafts_at_same_text: int = 0
    equal_drafts: int = 0
    ties: list[dict[str, float | int]] = field(default_factory=list)
    failures: list[dict[str, object]] = field(default_factory=list)


def compare(
    ours: Sequence[Answer],
    theirs: Sequence[Answer],
    *,
    max_tokens: int,
    k: int,
    chained: bool,
    tie: float,
    gaps_of: Callable[[int], Gaps],
) -> Comparison:
    """Compare two engines prompt by prompt.

    Near the end of an output the engines differ on purpose: this one drafts what max_tokens leaves room for, vLLM
    always drafts k. Drafts with less room than k are left out.

    Args:
        ours: answers of one engine.
        theirs: answers of the other, for the same prompts.
        max_tokens: most output tokens a prompt.
        k: guesses a draft at most.
        chained: whether each guess is made from the one before it, so that only the first difference tells something.
        tie: a difference is one of rounding if the two largest logits are less than this apart.
        gaps_of: returns our gaps for a prompt, by its number; asked for where something differs only.
    """
    result = Comparison(num_prompts=len(ours))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        parted = _first_difference(one.tokens, other.tokens)
        result.equal_outputs += parted is None
        if parted is not None:
            _judge(result, number, "output", parted, None, gaps_of(number).of_token(parted), tie)
        common = min(len(one.tokens), len(other.tokens)) if parted is None else parted
        _compare_drafts(result, number, one, other, min(common, max_tokens - k - 1), chained, tie, gaps_of)
    return result


def _compare_drafts(
    result: Comparison,
    number: int,
    one: Answer,
    other: Answer,
    last: int,
    chained: bool,
    tie: float,
    gaps_of: Callable[[int], Gaps],
) -> None:
    """Compare the drafts that two engines made at positions up to `last`."""
    differs = False
    for position in sorted(one.drafts.keys() | other.drafts.keys()):
        if position > last:
            return
        ours, theirs = one.drafts.get(position), other.drafts.get(position)
        if ours is None or theirs is None:
            # Once the engines have drafted differently they verify at different places.
            if not differs:
                _judge(result, number, "place", position, None, None, tie)
            differs = True
            continue
        result.drafts_at_same_text += 1
        result.equal_drafts += ours == theirs
        for index in _differences(ours, theirs, chained):
            _judge(result, number, "draft", position, index, gaps_of(number).of_guess(position, index), tie)
            differs = True


def _differences(ours: list[int], theirs: list[int], chained: bool) -> list[int]:
    """Return at which guesses two drafts differ, as far as one does not follow from the other."""
    found = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if len(ours) != len(theirs) and not (chained and found):
        found.append(min(len(ours), len(theirs)))
    return found[:1] if chained else found


def _judge(
    result: Comparison, number: int, what: str, position: int, index: int | None, gap: float | None, tie: float
) -> None:
    """Note a difference as a tie or a failure."""
    note = {"prompt": number, "what": what, "position": position, "index": index, "gap": gap}
    (result.ties if gap is not None and gap < tie else result.failures).append(note)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def count(answers: Sequence[Answer], *, max_tokens: int, k: int) -> Counts:
    """Return what an engine's counters say, but for drafts with less room than k before max_tokens."""
    made = [
        (draft, _num_accepted(draft, answer.tokens[position:]))
        for answer in answers
        for position, draft in answer.drafts.items()
        if position <= max_tokens - k - 1
    ]
    return Counts(
        num_drafts=len(made),
        num_draft_tokens=sum(len(draft) for draft, _ in made),
        num_accepted_tokens=sum(accepted for _, accepted in made),
        accepted_per_pos=tuple(sum(accepted > i for _, accepted in made) for i in range(k)),
        distinct_per_pos=tuple(len({draft[i] for draft, _ in made if len(draft) > i}) for i in range(k)),
    )


def _num_accepted(draft: list[int], text: Sequence[int]) -> int:
    """Return how many guesses of a draft the text confirms, at temperature 0."""
    for i, (guess, token) in enumerate(zip(draft, text, strict=False)):
        if guess != token:
            return i
    return min(len(draft), len(text))
