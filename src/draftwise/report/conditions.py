"""What a decision rests on and when to undo it, in words: rollback rules, scope, what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from draftwise.core import ClosedLoop, Condition, Decision, OpenLoop, Rollback, RollbackBasis, Scope, UnmeasuredCell
from draftwise.decide.validity.finding import join_names
from draftwise.facts.signals import LOAD_SIGNALS, TOKENS_PER_STEP, TTFT_P99_S
from draftwise.report.tables import name_workload
from draftwise.report.units import LOAD_UNITS, count_load, format_load

__all__ = ["describe_missing", "describe_rollback", "describe_rule", "describe_scope", "describe_unmeasured"]

_AXES = {signal.name: axis for axis, signal in LOAD_SIGNALS.items()}


_FLAGS = {
    "hardware": "--context hardware='8x H100'",
    "GPU and its driver": "--context hardware='8x H100, driver 570'",
    "model": "--context model=NAME",
    "precision": "--context precision=bfloat16",
    "serve command of every arm": "--context command.ARM='vllm serve ...' for each arm",
}
"""What tells a run the context that it cannot see, by its name in `Decision.missing_context`."""


def describe_missing(decision: Decision) -> str:
    """Return why a run is no evidence and what to type for the next one; empty where it is evidence."""
    missing = decision.missing_context
    if not missing:
        return ""
    flags = [_FLAGS[name] for name in missing if name in _FLAGS]
    way_out = f" Give the next one {join_names(flags, most=len(flags))}." if flags else ""
    return (
        f"NOT EVIDENCE: the run does not carry its {join_names(missing, most=len(missing))}, without which nobody can "
        f"repeat or judge it.{way_out}"
    )


def describe_rollback(decision: Decision) -> list[str]:
    """Return a sentence per workload, candidate and temperature: any of its signs is enough to roll back."""
    warm = any(rule.condition.temperature for rule in decision.rollback)
    groups: dict[tuple[str, str, float], dict[tuple[str, RollbackBasis], list[Rollback]]] = {}
    for rule in decision.rollback:
        signs = groups.setdefault((rule.workload, rule.arm, rule.condition.temperature), {})
        signs.setdefault((rule.metric, rule.basis), []).append(rule)
    return [
        f"{arm} on {name_workload(workload)}{f' at temperature {temperature:g}' if warm else ''}: "
        f"roll back when {', or when '.join(map(_describe_sign, signs.values()))}."
        for (workload, arm, temperature), signs in groups.items()
    ]


def describe_rule(rule: Rollback) -> str:
    """Return one rule as a sentence."""
    warm = f" at temperature {rule.condition.temperature:g}" if rule.condition.temperature else ""
    return f"Roll back {rule.arm} on {name_workload(rule.workload)}{warm}: {_describe_sign([rule])}."


def _describe_sign(rules: Sequence[Rollback]) -> str:
    """Return one reading with its limit under each load."""
    first = rules[0]
    limits = " or ".join(f"{_describe_limit(rule)}{_describe_stretch(rule)}" for rule in rules)
    if first.basis is RollbackBasis.BAND_END:
        return f"there are more than {limits} for an hour"
    if first.metric == TTFT_P99_S.name:
        return f"P99 of the time to the first token stays over {limits} for an hour"
    if first.metric == TOKENS_PER_STEP.name:
        return f"tokens per step stay under {limits} for an hour, where the gain is gone"
    return f"output tokens per second stay under {limits} for an hour"


def _describe_limit(rule: Rollback) -> str:
    if rule.basis is RollbackBasis.BAND_END:
        return count_load(rule.value, _AXES[rule.metric])
    if rule.basis is RollbackBasis.PROMISE:
        return f"the promised {1e3 * rule.value:g} ms"
    if rule.metric == TTFT_P99_S.name and rule.measured is not None:
        return f"{1e3 * rule.value:.3g} ms ({rule.value / rule.measured:g}x the baseline's)"
    if rule.metric == TOKENS_PER_STEP.name and rule.measured is not None:
        return f"{rule.value:.2f} (measured here: {rule.measured:.2f})"
    return f"the baseline's {rule.value:.0f}"


def _describe_stretch(rule: Rollback) -> str:
    """Return under which loads a rule holds, where it is not under all."""
    place = rule.condition.place
    if rule.loads is None or place is None:
        return ""
    (axis, _), (above, up_to) = place, rule.loads
    lower = f"above {format_load(above, axis)}" if above else ""
    upper = "" if isinf(up_to) else f"up to {format_load(up_to, axis)}"
    stretch = " and ".join(filter(None, (lower, upper)))
    return f" {stretch} {LOAD_UNITS[axis]}" if stretch else ""


def describe_scope(scope: Scope) -> list[str]:
    """Return, line by line, what was measured; outside of it a decision is a guess."""
    lines = {
        "traffic": ", ".join(f"{name} ({count} prompts)" for name, count in scope.workloads.items()),
        "load": _describe_loads(scope.conditions),
        "temperature": ", ".join(f"{value:g}" for value in scope.temperatures),
        "model": ", ".join(filter(None, (scope.model, scope.dtype))),
        "hardware": "; ".join(scope.hardware),
        "server": ", ".join(scope.servers),
    }
    return [f"{name}: {text}" for name, text in lines.items() if text]


def _describe_loads(conditions: Sequence[Condition]) -> str:
    streams = sorted({each.load.concurrency for each in conditions if isinstance(each.load, ClosedLoop)})
    others = dict.fromkeys(each.load.label for each in conditions if not isinstance(each.load, ClosedLoop))
    parts = []
    if streams:
        points = "1 request at a time" if streams == [1] else f"{', '.join(map(str, streams))} requests in flight"
        parts.append(points)
    if others:
        kind = "arrivals at " if any(isinstance(each.load, OpenLoop) for each in conditions) else ""
        parts.append(kind + ", ".join(others))
    return "; ".join(parts)


def describe_unmeasured(decision: Decision) -> list[str]:
    """Return a line per cell with fewer repetitions than were planned, and one for answers that were not used."""
    return [*map(_describe_cell, decision.unmeasured), *_describe_leftovers(decision)]


def _describe_cell(cell: UnmeasuredCell) -> str:
    odd = f" and {cell.odd_blocks} of the {cell.blocks_each} paired blocks of another" if cell.odd_blocks else ""
    place = f"{cell.candidate}, {cell.workload}, {cell.condition.label}"
    return f"{place}: {cell.repetitions} of {cell.planned} repetitions{odd}"


def _describe_leftovers(decision: Decision) -> Iterator[str]:
    if decision.num_unfinished:
        yield f"{decision.num_unfinished} answers of turns that were cut off are on disk and not used"
