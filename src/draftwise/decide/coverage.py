"""What a run planned and did not measure: an interrupted run says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from draftwise.core import Condition, Run, UnmeasuredCell, Workload
from draftwise.runs.blocks import blocks

__all__ = ["find_unmeasured"]


def find_unmeasured(run: Run) -> Iterator[UnmeasuredCell]:
    """Yield the cells with fewer repetitions than were planned.

    A block counts when the candidate and the baseline both finished it. Cells that an adaptive run stopped early had
    all the repetitions that they needed.
    """
    baseline, *candidates = (arm.name for arm in run.plan.arms)
    stopped = {each.key: each.passes for each in run.settled}
    done = {(turn.arm, turn.workload, turn.condition, turn.repeat, turn.block) for turn in run.turns}
    for workload, condition in product(run.plan.workloads, run.conditions):
        size = sum(1 for _ in blocks(workload, condition, run.plan.turn_s))
        for candidate in candidates:
            planned = stopped.get((workload.name, condition.label, candidate), run.plan.repeats)
            counts = [
                sum(
                    _have_both(done, (baseline, candidate), workload, condition, repeat, block) for block in range(size)
                )
                for repeat in range(1, planned + 1)
            ]
            if sum(counts) < planned * size:
                yield UnmeasuredCell(
                    candidate=candidate,
                    workload=workload.name,
                    condition=condition,
                    repetitions=counts.count(size),
                    planned=planned,
                    odd_blocks=sum(count for count in counts if count < size),
                    blocks_each=size,
                )


def _have_both(
    done: set[tuple[str, str, str, int, int]],
    arms: tuple[str, str],
    workload: Workload,
    condition: Condition,
    repeat: int,
    block: int,
) -> bool:
    return all((arm, workload.name, condition.label, repeat, block) in done for arm in arms)
