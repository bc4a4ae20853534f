"""Which paired blocks are taken again because something disturbed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from draftwise.core import Run, TurnRecord
from draftwise.decide.disturbance import set_aside_disturbed
from draftwise.runs.schedule import Turn

__all__ = ["LostBlock", "find_lost", "plan_retakes"]

_MOST_ATTEMPTS = 3
"""At a block, the first one included: what disturbs each of them is there to stay."""

BlockKey = tuple[str, str, int, int]
"""Workload, label of the condition, repetition and block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBlock:
    """A paired block that has no undisturbed attempt on all of its arms."""

    key: BlockKey
    arms: frozenset[str]
    """That are to answer it again, the baseline among them."""
    attempt: int


def find_lost(run: Run, labels: Sequence[str]) -> Iterator[LostBlock]:
    """Yield the blocks to take again, those with the fewest attempts first.

    An arm that could remember its answers is not asked again: the block is lost for it. Candidates whose verdict is
    settled need it no more.

    Args:
        run: as it is on disk, with every attempt.
        labels: of the conditions to look at.
    """
    counted = set_aside_disturbed(run)
    whole: dict[BlockKey, set[str]] = {}
    for turn in counted.turns:
        whole.setdefault(_key(turn), set()).add(turn.arm)
    disturbed = {each.key for each in counted.disturbances}
    attempts: dict[BlockKey, dict[int, set[str]]] = {}
    for turn in run.turns:
        attempts.setdefault(_key(turn), {}).setdefault(turn.attempt, set()).add(turn.arm)
    found = []
    for key, by_attempt in attempts.items():
        if key[1] in labels and (*key, 0) in disturbed:
            last = max(by_attempt)
            arms = _find_arms(run, key, by_attempt[0])
            # An attempt that was cut off is gone on with.
            attempt = last if last and not (arms <= by_attempt[last]) else last + 1
            if len(arms) > 1 and attempt < _MOST_ATTEMPTS and not arms <= whole.get(key, set()):
                found.append(LostBlock(key=key, arms=frozenset(arms), attempt=attempt))
    yield from sorted(found, key=lambda each: each.attempt)


def plan_retakes(lost: Iterable[LostBlock], turns: Iterable[Turn]) -> list[list[Turn]]:
    """Return the turns of lost blocks, block by block, in the order in which they were planned.

    Args:
        lost: from `find_lost`.
        turns: of the repetitions that the blocks are part of.
    """
    wanted = {each.key: each for each in lost}
    found: dict[BlockKey, list[Turn]] = {}
    for turn in turns:
        if (block := wanted.get(turn.block_key)) is not None and turn.arm in block.arms:
            found.setdefault(turn.block_key, []).append(replace(turn, attempt=block.attempt))
    return list(found.values())


def _key(turn: TurnRecord) -> BlockKey:
    return turn.workload, turn.condition, turn.repeat, turn.block


def _find_arms(run: Run, key: BlockKey, arms: set[str]) -> set[str]:
    """Return those of a block's arms that may answer it again and need to."""
    settled = {each.candidate for each in run.settled if (each.workload, each.condition) == key[:2]}
    return arms - set(run.plan.remembering) - settled
