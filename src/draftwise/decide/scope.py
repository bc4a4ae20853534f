"""What a decision holds for: the traffic, load, model, hardware and versions that were measured, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Run, Scope

__all__ = ["find_scope"]


def find_scope(run: Run) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    model, hardware = run.context.model, run.context.hardware
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=model.name or "",
        dtype=str(model.dtype or ""),
        hardware=(hardware.told,) if hardware.told else hardware.gpus or ((hardware.cpu,) if hardware.cpu else ()),
        servers=tuple(dict.fromkeys(_list_versions(run))),
    )


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        version = run.context.server(arm.name).version
        if version.get("version"):
            yield f"{version.get('engine', '')} {version['version']}".strip()
