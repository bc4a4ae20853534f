"""Who is asked what, in which order: arms take turns so that drift of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import Prompt, RunPlan

__all__ = ["Turn", "arm_order", "schedule"]

# With requests in flight together, a turn is long enough for them to overlap most of the time.
_BLOCK_PER_STREAM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A block of prompts that one arm answers while the other servers rest."""

    number: int
    arm: str
    workload: str
    repeat: int
    prompts: tuple[Prompt, ...]


def arm_order(arms: Sequence[str], block: int, repeat: int) -> list[str]:
    """Return the arms in their order for a block.

    The start rotates with block and repeat, so that over as many repeats as arms each prompt meets each arm once in
    each position; every other block runs backwards, so that no arm always follows the same one.
    """
    start = (block + repeat) % len(arms)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if block % 2 else order


def schedule(plan: RunPlan) -> Iterator[Turn]:
    """Yield the turns of a run: pass after pass over all workloads, so that an early end leaves whole passes."""
    size = 1 if plan.concurrency == 1 else _BLOCK_PER_STREAM * plan.concurrency
    names = [arm.name for arm in plan.arms]
    number = 0
    for repeat in range(1, plan.repeats + 1):
        for workload in plan.workloads:
            for block, start in enumerate(range(0, len(workload.prompts), size)):
                for arm in arm_order(names, block, repeat):
                    prompts = workload.prompts[start : start + size]
                    yield Turn(number=number, arm=arm, workload=workload.name, repeat=repeat, prompts=prompts)
                    number += 1
