"""What a run planned and did not measure, in words: an interrupted run says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from draftwise.core import Condition, Run, Workload
from draftwise.runs.schedule import blocks

__all__ = ["find_unmeasured"]


def find_unmeasured(run: Run) -> tuple[str, ...]:
    """Return one line per cell with fewer passes than were planned, and one for answers that could not be used.

    A turn counts when the candidate and the plain arm both finished it. Cells that an adaptive run settled early
    had all the passes that they needed.
    """
    return (*_short_cells(run), *_leftovers(run))


def _short_cells(run: Run) -> Iterator[str]:
    plain, *candidates = (arm.name for arm in run.plan.arms)
    settled = {(each.workload, each.condition, each.candidate): each.passes for each in run.settled}
    done = {(w.arm, w.workload, w.condition, w.repeat, w.block) for w in run.windows}
    for workload, condition in product(run.plan.workloads, run.conditions):
        size = sum(1 for _ in blocks(workload, condition, run.plan.turn_s))
        for candidate in candidates:
            wanted = settled.get((workload.name, condition.label, candidate), run.plan.repeats)
            counts = [
                sum(_has_both(done, (plain, candidate), workload, condition, repeat, block) for block in range(size))
                for repeat in range(1, wanted + 1)
            ]
            if sum(counts) < wanted * size:
                yield _describe(candidate, workload, condition, counts, size)


def _has_both(
    done: set[tuple[str, str, str, int, int]],
    arms: tuple[str, str],
    workload: Workload,
    condition: Condition,
    repeat: int,
    block: int,
) -> bool:
    return all((arm, workload.name, condition.label, repeat, block) in done for arm in arms)


def _describe(candidate: str, workload: Workload, condition: Condition, counts: list[int], size: int) -> str:
    whole = sum(count == size for count in counts)
    parts = sum(count for count in counts if count < size)
    rest = f" and {parts} of the {size} turns of another" if parts else ""
    return f"{candidate}, {workload.name}, {condition.label}: {whole} of {len(counts)} passes{rest}"


def _leftovers(run: Run) -> Iterator[str]:
    if run.num_unfinished:
        yield f"{run.num_unfinished} answers of turns that were cut off are on disk and not used"
