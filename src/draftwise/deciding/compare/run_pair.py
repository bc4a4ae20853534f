"""Pairs two measurements: shared cells, differences in context, and verdicts that still hold."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from draftwise.core import Comparison, Decision, Interval, Run, SpecStats, Verdict
from draftwise.core.comparison import ALL
from draftwise.core.documents import to_json
from draftwise.core.grouping import group_by
from draftwise.deciding.compare.changes import CellChange, compare_cells
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.deciding.interchange import ArmResults, Results, read_results
from draftwise.knowledge.messages import refusal
from draftwise.runs import RunDirectory
from draftwise.statistics import FEWEST_PROMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSide:
    """One measurement."""

    results: Results
    decision: Decision | None
    """None for results of other tools, which have no verdicts."""
    is_finished: bool = True
    """Whether the run came to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """Two compared measurements."""

    before: PairSide
    after: PairSide
    differences: tuple[ContextDifference, ...]
    cells: tuple[CellChange, ...]
    verdicts: tuple[VerdictChange, ...]
    left_out: tuple[str, ...]
    """Cells that only one measurement has, and runs that were stopped, in words."""

    @property
    def unasked(self) -> tuple[ContextDifference, ...]:
        """Differences not marked as intended."""
        return tuple(each for each in self.differences if not each.asked)

    @property
    def is_like_for_like(self) -> bool:
        """Whether the context differs only as intended."""
        return not self.unasked

    @property
    def gap(self) -> str:
        """Why two runs cannot tell whether the answer is still true, in words; empty if they can."""
        decisions = [side.decision for side in (self.before, self.after)]
        if stopped := [each.results.source for each in (self.before, self.after) if not each.is_finished]:
            return f"{' and '.join(stopped)} stopped early"
        if None not in decisions and not self.verdicts:
            names = (", ".join(_list_candidates(side)) or "none" for side in (self.before, self.after))
            return "no candidate was measured in both, under one name ({} before, {} after)".format(*names)
        lost = sorted(_list_adopted(self.before) - set(_list_candidates(self.after)))
        if None not in decisions and lost:
            return f"{' and '.join(lost)} {'was' if len(lost) == 1 else 'were'} not measured again"
        return ""

    @property
    def is_still_true(self) -> bool | None:
        """Whether every verdict of the first run still holds; None if that cannot be determined."""
        kept = {each.kept for each in self.verdicts}
        if not self.is_like_for_like or self.gap:
            return None
        if VerdictOutcome.CHANGED in kept:
            return False
        return True if VerdictOutcome.STILL in kept and VerdictOutcome.OPEN not in kept else None


def read_side(path: Path) -> PairSide:
    """Read a run directory, or a result file of another load generator.

    Raises:
        InvalidSetup: the path is neither.
    """
    if (path / "manifest.json").is_file():
        found = conclude_run(RunDirectory(path).read())
        finished = not found.run.seconds_short
        return PairSide(results=make_results(found, str(path)), decision=found.decision, is_finished=finished)
    return PairSide(results=read_results(path), decision=None)


def compare_sides(before: PairSide, after: PairSide, asked: Collection[str]) -> RunPair:
    """Compare two measurements.

    Args:
        before: the earlier measurement, whose verdicts are in question.
        after: the new measurement.
        asked: kinds of context (`KINDS`) that differ on purpose.

    Raises:
        InvalidSetup: the measurements share no cell.
    """
    pairs = _match(before.results, after.results)
    taken = {id(cell) for pair in pairs for cell in pair}
    left = [
        f"{side.results.source}: stopped before its end, so its verdicts are those so far. Go on with "
        f"draftwise decide --resume {shlex.quote(str(side.results.source))}"
        for side in (before, after)
        if not side.is_finished
    ]
    left += [
        f"{' · '.join(cell.key)}: only in {results.source}"
        for results in (before.results, after.results)
        for cell in results.cells
        if id(cell) not in taken
    ]
    alone = set(_list_candidates(before)) ^ set(_list_candidates(after))
    differences = (
        each
        for each in find_context_differences(before.results, after.results, asked)
        if not any(f"{each.name}.".startswith(f"{each.kind}.{arm}.") for arm in alone)
    )
    comparisons = [() if side.decision is None else side.decision.comparisons for side in (before, after)]
    return RunPair(
        before=before,
        after=after,
        differences=(*differences, *_other_places(pairs, asked)),
        cells=tuple(compare_cells(old, new) for old, new in pairs),
        verdicts=compare_verdicts(*comparisons),
        left_out=tuple(left),
    )


def _list_candidates(side: PairSide) -> list[str]:
    """Return the names of a run's candidates, sorted."""
    return sorted({each.candidate for each in side.decision.comparisons} if side.decision is not None else ())


def _list_adopted(side: PairSide) -> set[str]:
    """Return the candidates that a run adopts or recommends."""
    if side.decision is None:
        return set()
    recommended = (each for advice in side.decision.recommendations for each in advice.adopted)
    adopted = (each for each in side.decision.comparisons if each.verdict is Verdict.ADOPT)
    return {each.candidate for each in (*adopted, *recommended)}


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
        names = [
            ", ".join(sorted(" · ".join(cell.key) for cell in side.cells)[:6]) or "nothing was measured"
            for side in (before, after)
        ]
        raise refusal("nothing-in-common", after=after.source, before=before.source, theirs=names[1], ours=names[0])
    return pairs


class VerdictOutcome(StrEnum):
    """Whether a verdict still holds."""

    STILL = "still true"
    CHANGED = "no longer true"
    OPEN = "now undecided"
    """The second measurement is inconclusive or in doubt; the first was not."""
    NEWLY = "newly decided"
    """The first measurement was inconclusive or in doubt; the second is not."""
    NEITHER = "undecided in both"
    """Both measurements are inconclusive or in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictChange:
    """One candidate on one workload under one condition, compared in both runs."""

    workload: str
    condition: str
    candidate: str
    before: Comparison
    after: Comparison
    change: Interval
    """Deciding ratio, after over before. Above 1, speculation gains more than before."""
    kept: VerdictOutcome


def compare_verdicts(before: Sequence[Comparison], after: Sequence[Comparison]) -> tuple[VerdictChange, ...]:
    """Return every comparison that both runs have. Pooled ones are shared if they pool the same workloads."""
    known = {each.key: each for each in before}
    pools = [{each.key[:2] for each in side if each.workload != ALL} for side in (before, after)]
    found = []
    for each in after:
        old = known.get(each.key)
        if old is not None and (each.workload != ALL or pools[0] == pools[1]):
            found.append(
                VerdictChange(
                    workload=each.workload,
                    condition=each.condition.label,
                    candidate=each.candidate,
                    before=old,
                    after=each,
                    change=divide_ratios(old.deciding, each.deciding),
                    kept=judge_verdicts(old.verdict, each.verdict),
                )
            )
    return tuple(found)


def divide_ratios(before: Interval, after: Interval) -> Interval:
    """Return after / before, with an interval that treats the two runs as independent.

    Adds the limits' distances in quadrature on the log scale (MOVER; Zou and Donner, Statistics in Medicine 27, 2008),
    which keeps the confidence level of the inputs.
    """

    def log(value: float) -> float:
        return math.log(value) if value > 0 else -math.inf

    value = log(after.value) - log(before.value)
    low = value - math.hypot(log(after.value) - log(after.low), log(before.high) - log(before.value))
    high = value + math.hypot(log(after.high) - log(after.value), log(before.value) - log(before.low))
    return Interval(value=math.exp(value), low=math.exp(low), high=math.exp(high) if high < 700 else math.inf)


_TELL_NOTHING = (Verdict.INCONCLUSIVE, Verdict.BLOCKED)


def judge_verdicts(before: Verdict, after: Verdict) -> VerdictOutcome:
    """Return whether a verdict still holds."""
    if before in _TELL_NOTHING:
        return VerdictOutcome.NEITHER if after in _TELL_NOTHING else VerdictOutcome.NEWLY
    if after in _TELL_NOTHING:
        return VerdictOutcome.OPEN
    is_same = before is after or (before.stays_plain and after.stays_plain)
    return VerdictOutcome.STILL if is_same else VerdictOutcome.CHANGED


KINDS = ("version", "model", "hardware", "software", "command", "speculation", "workload", "parameters", "tool")
"""Kinds of context in which two measurements can differ. A name in a context begins with its kind."""
_KIND_OF = {
    "tokenizer": "model",
    "endpoint": "parameters",
    "num_prompts": "workload",
    "data": "workload",
    "seed": "parameters",
    "request_rate": "parameters",
    "burstiness": "parameters",
    "max_concurrency": "parameters",
    "ramp_up": "parameters",
    "temperature": "parameters",
}
"""Names that results of other tools have."""
_NO_MATTER = ("date", "label", "software.draftwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDifference:
    """One entry of the context that differs, or that only one side knows."""

    kind: str
    """One of KINDS."""
    name: str
    before: Any
    """None if unknown."""
    after: Any
    asked: bool
    """Whether the difference is intended."""


def find_context_differences(before: Results, after: Results, asked: Collection[str]) -> tuple[ContextDifference, ...]:
    """Return the differences between two contexts.

    An entry that only one side knows counts, unless the sides come from different tools, which record different ones.
    """
    found = []
    if before.tool != after.tool:
        found.append(_difference("tool", "tool", before.tool, after.tool, asked))
    same = {f"workload.{name}" for name, *_ in find_shared(before, after)}
    for name in dict.fromkeys((*before.context, *after.context)):
        old, new = before.context.get(name), after.context.get(name)
        if (
            name not in same
            and old != new
            and not name.startswith(_NO_MATTER)
            and not _only_a_tool_knows(before, after, name)
        ):
            found.append(_difference(_kind(name, before.tool), name, old, new, asked))
    return tuple(found)


def find_shared(before: Results, after: Results) -> list[tuple[str, int, int, int]]:
    """Return workloads whose prompts largely agree, with the number that both, the first and the second run asked.

    How many prompts a run gets through depends on its time, so the shared part counts, not the totals.
    """
    counts = (
        (name, len(mine & after.asked.get(name, frozenset())), len(mine), len(after.asked.get(name, ())))
        for name, mine in before.asked.items()
    )
    return [each for each in counts if each[1] >= FEWEST_PROMPTS and 2 * each[1] >= min(each[2:])]


def _difference(kind: str, name: str, before: Any, after: Any, asked: Collection[str]) -> ContextDifference:
    return ContextDifference(kind=kind, name=name, before=before, after=after, asked=kind in asked)


def _only_a_tool_knows(before: Results, after: Results, name: str) -> bool:
    """Tell whether a name is missing on one side because another tool does not record it."""
    return before.tool != after.tool and None in (before.context.get(name), after.context.get(name))


def _kind(name: str, tool: str) -> str:
    first = name.partition(".")[0]
    if name == "version" and tool != "draftwise":
        # Other load generators record their own version, not the server's.
        return "tool"
    return _KIND_OF.get(first, first if first in KINDS else "parameters")


TOOL = "draftwise"
_PLACES = ("--port", "--host", "--log-dir", "--uds")
"""Flags of a serve command that say where it runs, not what it does."""


def make_results(found: Conclusions, source: str) -> Results:
    """Return a cell per measured workload, condition and arm."""
    run = found.run
    measured = (answer for answer in run.answers if answer.measured)
    answers = group_by(lambda answer: (answer.workload, answer.condition, answer.arm), measured)
    spec: dict[tuple[str, str, str], SpecStats] = {}
    for turn in run.turns:
        place = (turn.workload, turn.condition, turn.arm)
        spec[place] = spec.get(place, SpecStats()) + turn.counters.spec
    rows = {(row.workload, row.condition, row.arm): row for row in found.latencies}
    cells = (
        ArmResults(
            workload=place[0],
            condition=place[1],
            arm=place[2],
            answers=tuple(mine),
            num_requests=sum(answer.error is None for answer in mine),
            num_failed=sum(answer.error is not None for answer in mine),
            output_tokens_per_s=rows[place].throughput if place in rows else None,
            spec=spec.get(place),
        )
        for place, mine in answers.items()
    )
    return Results(source=source, tool=TOOL, context=_context(run), cells=tuple(cells), asked=_list_asked(run))


def _list_asked(run: Run) -> dict[str, frozenset[str]]:
    asked = {(each.workload, each.prompt_id) for each in run.answers if each.measured}
    return {
        workload.name: frozenset(
            json.dumps(each.to_dict(), sort_keys=True) for each in workload.prompts if (workload.name, each.id) in asked
        )
        for workload in run.plan.workloads
    }


def _context(run: Run) -> dict[str, Any]:
    """Return the context, flat, with what differs from start to start left out."""
    plan, context = run.plan, run.context
    found: dict[str, Any] = {}
    for part, described in (("hardware", context.hardware), ("software", context.software), ("model", context.model)):
        found |= _flat(part, to_json(described))
    for arm in plan.arms:
        server = context.server(arm.name)
        found |= _flat(f"version.{arm.name}", server.version)
        found[f"command.{arm.name}"] = _same_everywhere(server.command)
        found[f"speculation.{arm.name}"] = arm.spec.to_json() if arm.spec else "none"
    for workload in plan.workloads:
        found[f"workload.{workload.name}"] = f"{len(workload.prompts)} prompts, sha256 {workload.sha256[:16]}"
    # How many repetitions were made is no difference in what was measured: it is in the intervals.
    found |= {"parameters.seed": plan.seed, "parameters.warmup": plan.warmup}
    return found


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(f"{prefix}.{name}", value)
        else:
            found[f"{prefix}.{name}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return found


def _same_everywhere(command: Any) -> Any:
    """Return a serve command without the flags that say where it runs."""
    if not isinstance(command, str):
        return command
    for flag in _PLACES:
        command = re.sub(rf"\s{re.escape(flag)}[= ](?:'[^']*'|\S+)", "", command)
    return shlex.join(shlex.split(command)) if command.count("'") % 2 == 0 else command
