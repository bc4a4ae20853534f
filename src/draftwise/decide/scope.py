"""What a decision holds for: the traffic, load, model, hardware and versions that were measured, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import ClosedLoop, Condition, Hardware, OpenLoop, Run

__all__ = ["describe_scope"]


def describe_scope(run: Run) -> tuple[str, ...]:
    """Return, line by line, what was measured; outside of it a decision is a guess."""
    return tuple(f"{name}: {text}" for name, text in _lines(run) if text)


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    measured = {window.condition for window in run.windows}
    conditions = [each for each in run.conditions if each.label in measured]
    context = run.context
    workloads = (f"{each.name} ({len(each.prompts)} prompts)" for each in run.plan.workloads)
    yield "traffic", ", ".join(workloads)
    yield "load", _loads(conditions)
    yield "temperature", ", ".join(f"{value:g}" for value in sorted({each.temperature for each in conditions}))
    yield "model", _listed(context.model.name, context.model.dtype)
    yield "hardware", _hardware(context.hardware)
    yield "server", _versions(run)


def _loads(conditions: Sequence[Condition]) -> str:
    """Return the loads in words: a range for several of a kind, for between them one can interpolate."""
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


def _listed(*values: str | None) -> str:
    return ", ".join(str(value) for value in values if value)


def _hardware(hardware: Hardware) -> str:
    return hardware.told or "; ".join(map(str, hardware.gpus)) or hardware.cpu or ""


def _versions(run: Run) -> str:
    versions = (run.context.server(arm.name).version for arm in run.plan.arms)
    named = (f"{each.get('engine', '')} {each['version']}".strip() for each in versions if each.get("version"))
    return ", ".join(dict.fromkeys(named))
