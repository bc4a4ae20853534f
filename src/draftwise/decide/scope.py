"""What a decision holds for: the traffic, load, model, hardware and versions that were measured, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Comparison, Run, RunContext, Scope
from draftwise.decide.validity.window.speculation import is_unproven

__all__ = ["find_scope"]


def find_scope(run: Run, comparisons: Sequence[Comparison]) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=run.context.model_name or "",
        dtype=run.context.model.dtype or "",
        hardware=_find_hardware(run.context),
        servers=tuple(dict.fromkeys(_list_versions(run))),
        unproven=tuple(dict.fromkeys(each.candidate for each in comparisons if is_unproven(each.findings))),
    )


def _find_hardware(context: RunContext) -> tuple[str, ...]:
    """Return what all servers run on as the operator told it, else as each tells it, else as it was seen here."""
    hardware = context.hardware
    if hardware.told:
        return (hardware.told,)
    of_servers = tuple(dict.fromkeys(each.hardware for each in context.servers.values() if each.hardware))
    return of_servers or tuple(map(str, hardware.gpus)) or ((hardware.cpu,) if hardware.cpu else ())


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        if server.release:
            yield f"{server.version.get('engine', '')} {server.release}".strip()
