"""How far a decision reaches: what it holds for, what was planned and not measured, and what a reader cannot check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from draftwise.core import (
    Condition,
    Hardware,
    Run,
    RunContext,
    RunPlan,
    Scope,
    ServerRecord,
    TargetModel,
    UnmeasuredCell,
    Workload,
)
from draftwise.runs.schedule import blocks

__all__ = ["Reach", "find_missing", "find_reach"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """For what a decision holds; outside of it, it is a guess."""

    scope: Scope
    unmeasured: tuple[UnmeasuredCell, ...]
    """What was planned and not measured."""
    missing_context: tuple[str, ...]
    """What evidence must carry (requirement E4) and the run lacks."""


def find_reach(run: Run) -> Reach:
    """Return for what a run can decide."""
    return Reach(
        scope=_find_scope(run),
        unmeasured=tuple(_find_unmeasured(run)),
        missing_context=find_missing(run.plan, run.context),
    )


def _find_scope(run: Run) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    model = run.context.model
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=_find_model(run.context, run.plan) or "",
        dtype=model.dtype or "",
        hardware=_find_hardware(run.context.hardware),
        servers=tuple(dict.fromkeys(_list_versions(run))),
    )


def _find_model(context: RunContext, plan: RunPlan) -> str | None:
    """Return the model: as told or found on disk, else the one that all servers name."""
    names = {context.server(arm.name).model for arm in plan.arms}
    return context.model.name or (names.pop() if len(names) == 1 else None)


def _find_hardware(hardware: Hardware) -> tuple[str, ...]:
    if hardware.told:
        return (hardware.told,)
    if hardware.gpus or not hardware.cpu:
        return tuple(map(str, hardware.gpus))
    return (f"{hardware.cores} cores of {hardware.cpu}" if hardware.cores else hardware.cpu,)


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        if server.release:
            yield f"{server.version.get('engine', '')} {server.release}".strip()


def _find_unmeasured(run: Run) -> Iterator[UnmeasuredCell]:
    """Yield the cells with fewer repetitions than were planned.

    A block counts when the candidate and the baseline both finished it. Cells that an adaptive run stopped early had
    all the repetitions that they needed.
    """
    baseline, *candidates = (arm.name for arm in run.plan.arms)
    stopped = {each.key: each.passes for each in run.settled}
    done = {(turn.arm, turn.workload, turn.condition, turn.repeat, turn.block) for turn in run.turns}
    for workload, condition in product(run.plan.workloads, run.conditions):
        size = len(blocks(workload, condition, run.plan.turn_s))
        for candidate in candidates:
            planned = stopped.get((workload.name, condition.label, candidate), run.plan.repeats)
            counts = [
                sum(
                    _have_both(done, (baseline, candidate), workload, condition, repeat, block) for block in range(size)
                )
                for repeat in range(1, planned + 1)
            ]
            if sum(counts) < planned * size:
                yield UnmeasuredCell(
                    candidate=candidate,
                    workload=workload.name,
                    condition=condition,
                    repetitions=counts.count(size),
                    planned=planned,
                    odd_blocks=sum(count for count in counts if count < size),
                    blocks_each=size,
                )


def _have_both(
    done: set[tuple[str, str, str, int, int]],
    arms: tuple[str, str],
    workload: Workload,
    condition: Condition,
    repeat: int,
    block: int,
) -> bool:
    return all((arm, workload.name, condition.label, repeat, block) in done for arm in arms)


def find_missing(plan: RunPlan, context: RunContext) -> tuple[str, ...]:
    """Return which of the context that evidence must carry (requirement E4) a run lacks."""
    hardware, model = context.hardware, context.model
    servers = [context.server(arm.name) for arm in plan.arms]
    required = {
        "hardware": hardware != Hardware(),
        "GPU and its driver": not _need_gpu(servers) or hardware.gpus or hardware.told,
        "model": _find_model(context, plan),
        "precision": _precision(model, servers),
        "runtime version": all(server.release for server in servers),
        "request parameters": plan.repeats and plan.conditions,
        "workload": plan.workloads and all(workload.prompts for workload in plan.workloads),
        "serve command of every arm": all(server.command for server in servers),
    }
    return tuple(name for name, given in required.items() if not given)


def _need_gpu(servers: Iterable[ServerRecord]) -> bool:
    """Return whether a server says that it computes on a GPU."""
    return any(
        str(server.version.get("device", "")).startswith("cuda") or server.started.get("gpus") for server in servers
    )


def _precision(model: TargetModel, servers: Iterable[ServerRecord]) -> str | None:
    """Return the precision: as told or found on disk (`auto` says nothing), else the one that all servers tell."""
    if model.dtype not in (None, "auto"):
        return str(model.dtype)
    told = {server.version.get("dtype") for server in servers}
    return str(told.pop()) if len(told) == 1 and None not in told else None
