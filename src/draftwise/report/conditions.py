"""What a decision rests on and when to undo it, in words: rollback rules, scope, what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import ClosedLoop, Condition, Decision, OpenLoop, Rollback, RollbackBasis, Scope, UnmeasuredCell
from draftwise.decide.validity.finding import join_names
from draftwise.facts.signals import LOAD_SIGNALS, TOKENS_PER_STEP, TTFT_P99_S
from draftwise.report.units import LOAD_UNITS, format_load

__all__ = ["describe_missing", "describe_rollback", "describe_scope", "describe_unmeasured"]

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
    """Return a sentence per workload and candidate: any of its signs is enough to roll back."""
    groups: dict[tuple[str, str], list[str]] = {}
    for rule in decision.rollback:
        groups.setdefault((rule.workload, rule.arm), []).append(_describe_rule(rule))
    return [
        f"{arm} on {workload}: roll back when {', or when '.join(signs)}." for (workload, arm), signs in groups.items()
    ]


def _describe_rule(rule: Rollback) -> str:
    if rule.basis is RollbackBasis.BAND_END:
        axis = _AXES[rule.metric]
        return f"there are more than {format_load(rule.value, axis)} {LOAD_UNITS[axis]} for an hour"
    if rule.metric == TTFT_P99_S.name:
        text = "P99 of the time to the first token stays over"
        if rule.measured is None:
            return f"{text} the promised {1e3 * rule.value:g} ms"
        return f"{text} {1e3 * rule.value:.3g} ms ({rule.value / rule.measured:g}x the baseline's)"
    if rule.metric == TOKENS_PER_STEP.name and rule.measured is not None:
        at = "" if rule.condition is None else f" at {rule.condition.label}"
        return (
            f"tokens per step stay under {rule.value:.2f} for an hour, where the gain is gone{at} "
            f"(measured here: {rule.measured:.2f})"
        )
    return f"output tokens per second fall to the baseline's ({rule.value:.0f} here)"


def describe_scope(scope: Scope) -> list[str]:
    """Return, line by line, what was measured; outside of it a decision is a guess."""
    lines = {
        "traffic": ", ".join(_describe_traffic(name, scope) for name in scope.workloads),
        "load": _describe_loads(scope.conditions),
        "temperature": ", ".join(f"{value:g}" for value in scope.temperatures),
        "model": ", ".join(filter(None, (scope.model, scope.dtype))),
        "hardware": "; ".join(scope.hardware),
        "server": ", ".join(scope.servers),
    }
    return [f"{name}: {text}" for name, text in lines.items() if text]


def _describe_traffic(workload: str, scope: Scope) -> str:
    repeats = f", {scope.repeats[workload]} of them repeats of others" if workload in scope.repeats else ""
    return f"{workload} ({scope.workloads[workload]} prompts{repeats})"


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
    """Return a line per omission and per cell with fewer repetitions than were planned, and one for unused answers."""
    left_out = [f"{each.what}: {each.reason}" for each in decision.omissions]
    return [*left_out, *map(_describe_cell, decision.unmeasured), *_describe_leftovers(decision)]


def _describe_cell(cell: UnmeasuredCell) -> str:
    place = f"{cell.candidate}, {cell.workload}, {cell.condition.label}"
    if cell.needed is not None:
        return f"{place}: it could remember answers, so that it needs {cell.needed} prompts that no other load asks it"
    odd = f" and {cell.odd_blocks} of the {cell.blocks_each} paired blocks of another" if cell.odd_blocks else ""
    return f"{place}: {cell.repetitions} of {cell.planned} repetitions{odd}"


def _describe_leftovers(decision: Decision) -> Iterator[str]:
    if decision.num_unfinished:
        yield f"{decision.num_unfinished} answers of turns that were cut off are on disk and not used"
