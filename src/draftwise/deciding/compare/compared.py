"""Reads two measurements, whichever tool made them, and puts beside each other what they have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from draftwise.core import Decision, InvalidSetup
from draftwise.deciding.compare.answers import Kept, VerdictChange, compare_verdicts
from draftwise.deciding.compare.context import ContextDifference, find_context_differences
from draftwise.deciding.compare.native_results import make_results
from draftwise.deciding.compare.readings import CellChange, compare_cells
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.interchange import ArmResults, Results, read_results
from draftwise.runs import RunDirectory

__all__ = ["Compared", "Side", "compare_sides", "read_side"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One measurement."""

    results: Results
    decision: Decision | None
    """None for results of tools that decide nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two measurements beside each other."""

    before: Side
    after: Side
    differences: tuple[ContextDifference, ...]
    cells: tuple[CellChange, ...]
    verdicts: tuple[VerdictChange, ...]
    left_out: tuple[str, ...]
    """Cells that only one of them has, in words."""

    @property
    def unasked(self) -> tuple[ContextDifference, ...]:
        """What differs beyond what was asked about."""
        return tuple(each for each in self.differences if not each.asked)

    @property
    def is_like_for_like(self) -> bool:
        """Whether the numbers differ for no other reason than what was asked about."""
        return not self.unasked

    @property
    def is_still_true(self) -> bool | None:
        """Whether every verdict of the first run still holds; None where it cannot be told."""
        kept = {each.kept for each in self.verdicts}
        if not self.is_like_for_like:
            return None
        if Kept.CHANGED in kept:
            return False
        return True if Kept.STILL in kept and Kept.OPEN not in kept else None


def read_side(path: Path) -> Side:
    """Return what a run directory, or a file of another load generator, holds.

    Raises:
        InvalidSetup: neither.
    """
    if (path / "manifest.json").is_file():
        found = conclude_run(RunDirectory(path).read())
        return Side(results=make_results(found, str(path)), decision=found.decision)
    return Side(results=read_results(path), decision=None)


def compare_sides(before: Side, after: Side, asked: Collection[str]) -> Compared:
    """Return what two measurements have in common.

    Args:
        before: the one whose answer is in question.
        after: the new one.
        asked: kinds of context (`decide.compare.context.KINDS`) that differ on purpose.

    Raises:
        InvalidSetup: they have no cell in common.
    """
    pairs = _match(before.results, after.results)
    taken = {id(cell) for pair in pairs for cell in pair}
    left = [
        f"{' · '.join(cell.key)}: only in {results.source}"
        for results in (before.results, after.results)
        for cell in results.cells
        if id(cell) not in taken
    ]
    comparisons = [() if side.decision is None else side.decision.comparisons for side in (before, after)]
    return Compared(
        before=before,
        after=after,
        differences=(*find_context_differences(before.results, after.results, asked), *_other_places(pairs, asked)),
        cells=tuple(compare_cells(old, new) for old, new in pairs),
        verdicts=compare_verdicts(*comparisons),
        left_out=tuple(left),
    )


def _other_places(
    pairs: Iterable[tuple[ArmResults, ArmResults]], asked: Collection[str]
) -> Iterator[ContextDifference]:
    """Yield what differs between two cells that are compared because each side has no other."""
    kinds = {"workload": "workload", "condition": "parameters", "arm": "speculation"}
    for old, new in pairs:
        for name, kind in kinds.items():
            before, after = getattr(old, name), getattr(new, name)
            if before != after:
                yield ContextDifference(kind=kind, name=name, before=before, after=after, asked=kind in asked)


def _match(before: Results, after: Results) -> list[tuple[ArmResults, ArmResults]]:
    """Return the cells with equal workload, condition and arm; two measurements of one cell each are a pair anyway."""
    known = {cell.key: cell for cell in before.cells}
    pairs = [(known[cell.key], cell) for cell in after.cells if cell.key in known]
    if not pairs and len(before.cells) == len(after.cells) == 1:
        pairs = [(before.cells[0], after.cells[0])]
    if not pairs:
        names = [", ".join(sorted(" · ".join(cell.key) for cell in side.cells)[:6]) for side in (before, after)]
        raise InvalidSetup.because(
            "nothing-in-common",
            f"{after.source} has no workload, load and arm in common with {before.source} ({names[1]} / {names[0]}).",
            where=after.source,
            fix="Measure the same workload under the same load.",
        )
    return pairs
