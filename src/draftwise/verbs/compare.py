"""`compare`: asks whether an answer is still true: compares two runs, or results of other load generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from draftwise.core import Comparison, Interval, Verdict
from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.deciding.compare import RunPair, compare_sides, read_side
from draftwise.deciding.compare.changes import CellChange
from draftwise.deciding.compare.run_pair import KINDS, ContextDifference, PairSide, VerdictChange, VerdictOutcome
from draftwise.reporting.compared_runs import describe_comparison, list_notes, to_markdown
from draftwise.reporting.sentences import describe_decision
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["KINDS", "CompareRequest", "CompareResult", "compare"]


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Two measurements, and what differs between them on purpose."""

    before: str | PathLike[str]
    """Run directory, or a result of `vllm bench serve`, guidellm or aiperf."""
    after: str | PathLike[str]
    """The later measurement, likewise."""
    _: KW_ONLY
    changed: str | Sequence[str] = ("version",)
    """What you changed on purpose (`KINDS`). With any other difference, the comparison is not like for like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One measurement."""

    source: str
    tool: str
    context: Mapping[str, Any]
    decision: str | None
    """The decision in words; null for results of a tool that makes none."""

    @classmethod
    def of(cls, side: PairSide) -> ComparedSide:
        """Return the row of a measurement."""
        results = side.results
        decision = None if side.decision is None else describe_decision(side.decision)
        return cls(source=results.source, tool=results.tool, context=results.context, decision=decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedVerdict:
    """A verdict with the ratio that decided it."""

    verdict: Verdict
    speedup: Interval

    @classmethod
    def of(cls, comparison: Comparison) -> ComparedVerdict:
        """Return the verdict of a comparison."""
        return cls(verdict=comparison.verdict, speedup=comparison.deciding)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One candidate on one workload under one condition, in both measurements."""

    workload: str
    condition: str
    candidate: str
    before: ComparedVerdict
    after: ComparedVerdict
    change: Interval
    """Deciding ratio, after over before; above 1, speculation gains more than it did."""
    kept: VerdictOutcome

    @classmethod
    def of(cls, change: VerdictChange) -> VerdictRow:
        """Return the row of a verdict."""
        before, after = map(ComparedVerdict.of, (change.before, change.after))
        return copy_fields(cls, change, before=before, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult(Result):
    """The differences between two measurements, and whether the first answer still holds."""

    VERB: ClassVar[str] = "compare"
    sentence: str
    """Whether the first answer still holds, in words."""
    like_for_like: bool
    """Whether nothing differs except what you changed on purpose."""
    still_true: bool | None
    """Whether every verdict of the first still holds; null if that is unknown."""
    before: ComparedSide
    after: ComparedSide
    differences: tuple[ContextDifference, ...]
    verdicts: tuple[VerdictRow, ...]
    cells: tuple[CellChange, ...]
    notes: tuple[str, ...]
    """Caveats about the numbers."""
    compared: RunPair = field(metadata=HIDDEN)

    @classmethod
    def of(cls, compared: RunPair) -> CompareResult:
        """Return the result of a comparison."""
        return cls(
            sentence=describe_comparison(compared),
            like_for_like=compared.is_like_for_like,
            still_true=compared.is_still_true,
            before=ComparedSide.of(compared.before),
            after=ComparedSide.of(compared.after),
            differences=compared.differences,
            verdicts=tuple(map(VerdictRow.of, compared.verdicts)),
            cells=compared.cells,
            notes=tuple(list_notes(compared)),
            compared=compared,
        )

    @property
    def exit_code(self) -> int:
        """1 if a verdict is no longer true or cannot be checked: not like for like, stopped, not measured again."""
        return int(not self.like_for_like or self.still_true is False or bool(self.compared.gap))

    def to_markdown(self) -> str:
        """Return a comment for a pull request."""
        return to_markdown(self.compared)


@verb(CompareRequest)
def compare(request: CompareRequest, _progress: Progress) -> CompareResult:
    """Say whether the conclusion of one measurement still holds in another.

    The result lists differences in model, version, hardware and parameters, then the verdicts, then the readings of
    each arm.
    """
    changed = (request.changed,) if isinstance(request.changed, str) else tuple(request.changed)
    if unknown := [each for each in changed if each not in KINDS]:
        refuse(f"There is no kind of difference {unknown[0]!r}: give one of {', '.join(KINDS)}.", where="--changed")
    compared = compare_sides(read_side(Path(request.before)), read_side(Path(request.after)), changed)
    return CompareResult.of(compared)
