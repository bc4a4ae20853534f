"""The order of turns: the arms alternate, so that drift of the machine affects all of them alike."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from draftwise.core import Condition, OpenLoop, Prompt, RunPlan, Workload

__all__ = ["Block", "CellKey", "Turn", "arm_order", "blocks", "plan_turns"]

_BLOCK_PER_STREAM = 4
"""Requests per stream of a turn: enough for each stream to meet the others at all stages of their answers."""

CellKey = tuple[str, str, str]
"""Workload, label of the condition, candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a workload that each arm answers in one turn."""

    number: int
    prompts: tuple[Prompt, ...]
    copies: tuple[int, ...]
    """Beside each prompt: how often it came before in this block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A block of prompts that one arm answers under one condition while the other servers are idle."""

    number: int
    arm: str
    workload: str
    repeat: int
    prompts: tuple[Prompt, ...]
    condition: Condition = field(default_factory=Condition)
    block: int = 0
    copies: tuple[int, ...] = ()
    """Beside each prompt, empty for none: how often it came before in this turn."""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What makes it the same turn in another session."""
        return (self.arm, self.workload, self.condition.label, self.repeat, self.block)


def arm_order(arms: Sequence[str], block: int, repeat: int) -> list[str]:
    """Return the arms in their order for a block.

    The start rotates with block and repeat, so that over as many repeats as arms each prompt meets each arm once in
    each position; every other block runs backwards, so that no arm always follows the same one.
    """
    start = (block + repeat) % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if block % 2 else order


def blocks(workload: Workload, condition: Condition, turn_s: float) -> list[Block]:
    """Return the parts of a workload under a condition.

    One prompt each for a single stream; else as many as keep the load up for a while, and a workload that is too
    short for that is gone through several times.
    """
    size = _size(workload, condition, turn_s)
    rounds = math.ceil(size / len(workload.prompts)) if size else 1
    requests = [(prompt, copy) for copy in range(rounds) for prompt in workload.prompts]
    wanted = max(len(workload.prompts), size)
    return [
        Block(number=number, prompts=tuple(prompt for prompt, _ in part), copies=tuple(copy for _, copy in part))
        for number, part in enumerate(_parts(requests[:wanted], size or wanted))
    ]


def _parts(requests: list[tuple[Prompt, int]], size: int) -> Iterator[Sequence[tuple[Prompt, int]]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _size(workload: Workload, condition: Condition, turn_s: float) -> int:
    """Return the requests of a turn; a recording is replayed as a whole."""
    if condition.concurrency is not None:
        return 1 if condition.concurrency == 1 else _BLOCK_PER_STREAM * condition.concurrency
    if isinstance(condition.load, OpenLoop):
        return _arrivals_within(condition.load, turn_s)
    return len(workload.prompts)


def _arrivals_within(load: OpenLoop, turn_s: float) -> int:
    """Return the expected arrivals of a turn: of all phases, the endless one taking `turn_s`."""
    expected = sum(
        (phase.start_per_s + phase.end_per_s) / 2 * (turn_s if phase.duration_s is None else phase.duration_s)
        for phase in load.phases
    )
    return max(1, round(expected))


def plan_turns(
    plan: RunPlan, conditions: Sequence[Condition], repeat: int, *, without: Container[CellKey] = (), number: int = 0
) -> Iterator[Turn]:
    """Yield the turns of one repetition of all workloads under the conditions, numbered from `number` on.

    Candidates of cells in `without` are left out; so is the baseline where all candidates are.
    """
    baseline, *candidates = (arm.name for arm in plan.arms)
    for condition in conditions:
        for workload in plan.workloads:
            left = [name for name in candidates if (workload.name, condition.label, name) not in without]
            for block in blocks(workload, condition, plan.turn_s) if left else ():
                for arm in arm_order([baseline, *left], block.number, repeat):
                    yield Turn(
                        number=number,
                        arm=arm,
                        workload=workload.name,
                        condition=condition,
                        repeat=repeat,
                        block=block.number,
                        prompts=block.prompts,
                        copies=block.copies,
                    )
                    number += 1
