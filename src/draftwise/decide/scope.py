"""What a decision holds for: the traffic, load, model, hardware and versions that were measured, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Run, Scope

__all__ = ["find_scope"]


def find_scope(run: Run) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    model = run.context.get("model", {})
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=str(model.get("name") or ""),
        dtype=str(model.get("dtype") or ""),
        hardware=_find_hardware(run.context.get("hardware", {})),
        servers=tuple(dict.fromkeys(_list_versions(run))),
    )


def _find_hardware(given: Mapping[str, Any]) -> tuple[str, ...]:
    if "as told" in given:
        return (str(given["as told"]),)
    gpus = tuple(map(str, given.get("gpus") or ()))
    return gpus or ((str(given["cpu"]),) if given.get("cpu") else ())


def _list_versions(run: Run) -> Iterator[str]:
    servers = run.context.get("servers", {})
    for arm in run.plan.arms:
        version = servers.get(arm.name, {}).get("version", {})
        if version.get("version"):
            yield f"{version.get('engine', '')} {version['version']}".strip()
