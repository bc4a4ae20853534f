"""What a decision holds for: the traffic, load, model, hardware and versions that were measured, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Hardware, Run, Scope

__all__ = ["find_scope"]


def find_scope(run: Run) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    model = run.context.model
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=model.name or "",
        dtype=model.dtype or "",
        hardware=_find_hardware(run.context.hardware),
        servers=tuple(dict.fromkeys(_list_versions(run))),
    )


def _find_hardware(hardware: Hardware) -> tuple[str, ...]:
    if hardware.told:
        return (hardware.told,)
    return tuple(map(str, hardware.gpus)) or ((hardware.cpu,) if hardware.cpu else ())


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        if server.release:
            yield f"{server.version.get('engine', '')} {server.release}".strip()
