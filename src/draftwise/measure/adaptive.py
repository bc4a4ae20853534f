"""What an adaptive run measures next: settled cells are stopped early, loads around a crossover are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftwise.core import ClosedLoop, Comparison, Condition, Load, OpenLoop, Run, Settled, Verdict
from draftwise.core.comparison import ALL
from draftwise.deciding.bands import gather_load_points
from draftwise.deciding.comparison.comparisons import estimate_cells
from draftwise.deciding.conclusions import gather_evidence
from draftwise.deciding.disturbance import set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.statistics import next_load

__all__ = ["FIRST_ANALYSIS", "describe_first_verdict", "describe_lead", "find_settled", "next_conditions"]

_MOST_NAMED = 6
FIRST_ANALYSIS = 2
"""Repetitions before the first interim analysis: one says nothing about the drift between repetitions."""


def find_settled(run: Run, conditions: Sequence[Condition], repeat: int) -> Iterator[Settled]:
    """Yield the cells whose verdict is settled after so many repetitions."""
    labels = {condition.label for condition in conditions}
    known = {each.key for each in run.settled}
    for each in gather_evidence(run).comparisons:
        workload, label, candidate = each.key
        if each.settled and workload != ALL and label in labels and each.key not in known:
            yield Settled(workload=workload, condition=label, candidate=candidate, passes=repeat)


def describe_lead(run: Run) -> str | None:
    """Return in a sentence which candidate leads under each load on each workload, and what that is worth so far; None
    where nothing that was measured counts yet."""
    best: dict[tuple[str, str], Comparison] = {}
    for each in gather_evidence(run).comparisons:
        place = (each.workload, each.condition.label)
        if each.workload != ALL and (place not in best or _rank(each) > _rank(best[place])):
            best[place] = each
    if not best:
        return None
    parts = list(map(_describe, best.values()))
    more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return f"So far: {'; '.join(parts[:_MOST_NAMED])}{more}."


def describe_first_verdict(run: Run, place: tuple[str, str]) -> str | None:
    """Return in a sentence which candidate is adopted already on a workload under a load; None where none is."""
    workloads = tuple(each for each in run.plan.workloads if each.name == place[0])
    here = replace(
        run,
        plan=replace(run.plan, workloads=workloads),
        turns=tuple(each for each in run.turns if (each.workload, each.condition) == place),
        answers=tuple(each for each in run.answers if (each.workload, each.condition) == place),
    )
    best = max(gather_evidence(here).comparisons, key=_rank, default=None)
    if best is None or best.verdict is not Verdict.ADOPT:
        return None
    return f"First verdict: {_describe(best)} on {best.num_prompts} prompts. The rest of the time makes it surer."


def _rank(comparison: Comparison) -> tuple[bool, float]:
    return comparison.verdict is Verdict.ADOPT, comparison.deciding.value


def _describe(each: Comparison) -> str:
    place = f"{each.workload} {each.condition.label}"
    return f"{place}: {each.candidate} {each.deciding.value:.2f}x ({each.deciding.span}), {each.verdict}"


def next_conditions(run: Run) -> dict[Condition, set[tuple[str, str]]]:
    """Return the loads to measure next, each with the workloads and candidates whose crossover lies near it.

    Empty when every crossover is known well enough. Nothing is added beyond the planned loads, nor where only one was
    planned.
    """
    known = {condition.label for condition in run.conditions}
    found: dict[Condition, set[tuple[str, str]]] = {}
    thresholds = get_thresholds(run)
    points_by_sweep = gather_load_points(estimate_cells(set_aside_disturbed(run, thresholds), thresholds))
    for (workload, candidate, temperature, axis), points in points_by_sweep.items():
        planned = _planned(run, axis, temperature)
        if len(planned) > 1:
            load = next_load(points, integer=axis == "concurrency", least=min(planned), most=max(planned))
            if load is not None:
                condition = Condition(load=_load_at(run, axis, load), temperature=temperature)
                if condition.label not in known:
                    names = [each.name for each in run.plan.workloads] if workload == ALL else [workload]
                    found.setdefault(condition, set()).update((name, candidate) for name in names)
    return found


def _planned(run: Run, axis: str, temperature: float) -> set[float]:
    places = (each.place for each in run.plan.conditions if each.temperature == temperature)
    return {place[1] for place in places if place is not None and place[0] == axis}


def _load_at(run: Run, axis: str, value: float) -> Load:
    if axis == "concurrency":
        return ClosedLoop(concurrency=round(value))
    steady = next(each.load for each in run.plan.conditions if each.place and isinstance(each.load, OpenLoop))
    return OpenLoop.steady(float(f"{value:.3g}"), steady.arrivals)
