"""Which turns are taken again because something disturbed them, each candidate's with a fresh one of the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftwise.core import Run
from draftwise.core.grouping import group_by
from draftwise.deciding.disturbance import find_lost_pairs, set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.runs.schedule import Turn

__all__ = ["LostBlock", "find_lost", "plan_retakes"]

_MOST_ATTEMPTS = 3
"""At a pair, the first one included: what disturbs each of them is there to stay."""

BlockKey = tuple[str, str, int, int]
"""Workload, label of the condition, repetition and block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBlock:
    """A block of which some candidates have no undisturbed pair."""

    key: BlockKey
    arms: frozenset[str]
    """That are to answer it again, the baseline among them."""
    attempt: int


def find_lost(run: Run, labels: Sequence[str]) -> list[LostBlock]:
    """Return the blocks to take again, those with the fewest attempts first.

    A candidate that could remember its answers is not asked again: the block is lost for it. Candidates whose verdict
    is settled need it no more. An attempt that was cut off is not gone on with: turns of two sessions are no pair.

    Args:
        run: as it is on disk, with every attempt.
        labels: of the conditions to look at.
    """
    settled = {each.key for each in run.settled}
    again: dict[BlockKey, set[str]] = {}
    for pair in find_lost_pairs(set_aside_disturbed(run, get_thresholds(run))):
        workload, label, *_ = pair.block
        is_needed = label in labels and (workload, label, pair.candidate) not in settled
        if is_needed and pair.candidate not in run.plan.remembering and pair.attempts < _MOST_ATTEMPTS:
            again.setdefault(pair.block, {run.plan.arms[0].name}).add(pair.candidate)
    attempts = dict.fromkeys(again, 0)
    for turn in run.turns:
        if turn.block_key in again:
            attempts[turn.block_key] = max(attempts[turn.block_key], turn.attempt)
    found = (LostBlock(key=key, arms=frozenset(arms), attempt=attempts[key] + 1) for key, arms in again.items())
    return sorted(found, key=lambda each: each.attempt)


def plan_retakes(lost: Iterable[LostBlock], turns: Iterable[Turn], *, most: int) -> list[list[Turn]]:
    """Return the turns that are taken again, block by block, each in the order in which its arms were planned.

    Args:
        lost: from `find_lost`.
        turns: of the repetitions that the blocks are part of.
        most: turns from which no other block is begun.
    """
    planned = group_by(lambda turn: turn.block_key, turns)
    found: list[list[Turn]] = []
    for block in lost:
        mine = [replace(turn, attempt=block.attempt) for turn in planned.get(block.key, ()) if turn.arm in block.arms]
        if len(mine) > 1 and sum(map(len, found)) < most:
            found.append(mine)
    return found
