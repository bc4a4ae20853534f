"""The tables of a report as values for HTML and Markdown: verdicts by load, findings, context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftwise.core import Finding, Severity
from draftwise.core.comparison import ALL
from draftwise.core.documents import to_json
from draftwise.core.grouping import group_by
from draftwise.reporting.predictions import describe_estimates, find_undisturbed, hold_estimates
from draftwise.reporting.units import LOAD_UNITS, format_load

if TYPE_CHECKING:
    from draftwise.core import Band, Comparison, Crossover, Decision, Run

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The verdicts on one workload at one temperature: a row per candidate, a column per load."""

    workload: str
    temperature: float
    loads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Comparison | None, ...]], ...]
    """(candidate, comparison by load); None if it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """A finding and everywhere it applies."""

    finding: Finding
    """The first of these findings."""
    places: tuple[tuple[str, str], ...]
    """(where, message) of each place."""


def make_grids(comparisons: Iterable[Comparison]) -> list[Grid]:
    """Return the verdicts by workload and temperature, with all workloads pooled last."""
    groups = group_by(lambda each: (each.workload, each.condition.temperature), sort_comparisons(comparisons))
    return [_grid(workload, temperature, group) for (workload, temperature), group in groups.items()]


def sort_comparisons(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons sorted by workload, temperature and load, pooled ones last."""
    given = list(comparisons)
    workloads = {name: i for i, name in enumerate(dict.fromkeys(each.workload for each in given))}
    conditions = {label: i for i, label in enumerate(dict.fromkeys(each.condition.label for each in given))}

    def rank(each: Comparison) -> tuple[bool, int, float, tuple[str, float], int]:
        place = each.condition.place or ("", 0.0)
        label = conditions[each.condition.label]
        return each.workload == ALL, workloads[each.workload], each.condition.temperature, place, label

    return sorted(given, key=rank)


def _grid(workload: str, temperature: float, group: Sequence[Comparison]) -> Grid:
    loads = tuple(dict.fromkeys(each.condition.load.label for each in group))
    found = {(each.candidate, each.condition.load.label): each for each in group}
    rows = tuple(
        (candidate, tuple(found.get((candidate, load)) for load in loads))
        for candidate in dict.fromkeys(each.candidate for each in group)
    )
    return Grid(workload=workload, temperature=temperature, loads=loads, rows=rows)


def name_workload(workload: str) -> str:
    """Return the workload's display name."""
    return "all workloads together" if workload == ALL else workload


def group_findings(decision: Decision) -> list[FindingGroup]:
    """Return every finding once, most severe first, with all places where it applies."""
    several = len({each.condition for each in decision.comparisons}) > 1
    given = [("the run", finding) for finding in decision.findings]
    for each in sort_comparisons(decision.comparisons):
        names = (each.workload, *((each.condition.label,) if several else ()), each.candidate)
        given += [(" · ".join(names), finding) for finding in each.findings]
    found = [
        FindingGroup(finding=group[0][1], places=tuple((where, each.message) for where, each in group))
        for group in group_by(lambda each: (each[1].code, each[1].severity), given).values()
    ]
    return sorted(found, key=lambda each: _ORDER[each.finding.severity])


def list_band_rows(bands: Iterable[Band]) -> list[tuple[str, str]]:
    """Return, per workload and temperature, what to run at which load."""
    sweeps = group_by(lambda band: (band.workload, band.temperature, band.axis), bands)
    return [
        (
            _with_temperature(workload, temperature),
            "; ".join(f"{_stretch(band)}: {band.setting}" for band in group) + f" ({LOAD_UNITS[axis]})",
        )
        for (workload, temperature, axis), group in sweeps.items()
    ]


def _stretch(band: Band) -> str:
    above, up_to = (format_load(load, band.axis) for load in (band.above, band.up_to))
    if math.isinf(band.up_to):
        return f"above {above}" if band.above else "at every load measured"
    return f"{above} to {up_to}" if band.above else f"up to {up_to}"


def list_crossover_rows(crossovers: Iterable[Crossover]) -> list[tuple[str, str, str, str, str]]:
    """Return where each candidate stops paying: (place, load, interval, largest adopted load, unit)."""
    rows = []
    for each in crossovers:
        place = f"{_with_temperature(each.workload, each.temperature)} · {each.candidate}"
        ends = ("∞" if math.isinf(end) else format_load(end, each.axis) for end in (each.low, each.high))
        value = "beyond the measured loads" if each.value is None else format_load(each.value, each.axis)
        below = "-" if each.adopt_below is None else format_load(each.adopt_below, each.axis)
        rows.append((place, value, " - ".join(ends), below, LOAD_UNITS[each.axis]))
    return rows


def _with_temperature(workload: str, temperature: float) -> str:
    return name_workload(workload) + (f" · T={temperature:g}" if temperature else "")


def list_context_rows(run: Run) -> list[tuple[str, str]]:
    """Return (name, value) of everything that the numbers depend on; unknown values say so."""
    context, plan = run.context, run.plan
    described = (("Hardware", context.hardware), ("Software", context.software), ("Model", context.model))
    rows = [(name, _told(to_json(each))) for name, each in described]
    rows.append(("Loads", ", ".join(condition.label for condition in run.conditions)))
    rows.append(
        (
            "Requests",
            f"seed {plan.seed}, streamed; {'at most ' if plan.adaptive else ''}{plan.repeats} repetitions, "
            f"{plan.warmup} discarded warm-ups per arm; {len(run.answers)} answers",
        )
    )
    if told := describe_estimates(hold_estimates(run.estimates), find_undisturbed(run)):
        rows.append(("Time", told))
    lengths = _mean_lengths(run)
    for workload in plan.workloads:
        prompt, output = lengths[workload.name]
        about = f"; {workload.description}" if workload.description else ""
        text = (
            f"{len(workload.prompts)} prompts ({workload.source}), mean {prompt} prompt and {output} output "
            f"tokens{about}; sha256 {workload.sha256[:16]}"
        )
        rows.append((f"Workload {workload.name}", text))
    return rows


def _told(values: Mapping[str, Any]) -> str:
    def text(name: str, value: Any) -> str:
        if name == "parameters" and isinstance(value, int):
            return f"{value / 1e6:.1f} million"
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    return "; ".join(f"{name}: {text(name, value)}" for name, value in values.items()) or "not known"


def _mean_lengths(run: Run) -> dict[str, tuple[str, str]]:
    """Return the mean prompt and output lengths in tokens of the baseline, by workload."""
    baseline = run.plan.arms[0].name
    lengths = {}
    for workload in run.plan.workloads:
        mine = [a for a in run.answers if a.arm == baseline and a.workload == workload.name and a.error is None]
        prompts = [answer.num_prompt_tokens for answer in mine if answer.num_prompt_tokens is not None]
        outputs = [answer.timing.num_tokens for answer in mine if answer.measured]
        lengths[workload.name] = (_mean(prompts), _mean(outputs))
    return lengths


def _mean(values: Sequence[int]) -> str:
    return f"{sum(values) / len(values):.0f}" if values else "-"
