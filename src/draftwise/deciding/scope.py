"""How far a decision reaches: what it holds for, what was planned and not measured, and what a reader cannot check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from draftwise.core import (
    Comparison,
    Finding,
    Hardware,
    Run,
    RunContext,
    RunPlan,
    Scope,
    ServerRecord,
    TargetModel,
    UnmeasuredCell,
)
from draftwise.deciding.validity.drafting import UNPROVEN
from draftwise.runs.blocks import count_needed
from draftwise.runs.schedule import list_planned

__all__ = ["Reach", "find_missing", "find_reach"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """For what a decision holds; outside of it, it is a guess."""

    scope: Scope
    unmeasured: tuple[UnmeasuredCell, ...]
    """What was planned and not measured."""
    missing_context: tuple[str, ...]
    """What evidence must carry (requirement E4) and the run lacks."""
    failures: tuple[Finding, ...]
    """The candidates that the run went on without, each with what its server said."""


def find_reach(run: Run, comparisons: Sequence[Comparison]) -> Reach:
    """Return for what a run can decide."""
    plan = _without_failed(run)
    return Reach(
        scope=_find_scope(run, comparisons),
        unmeasured=tuple(_find_unmeasured(run, plan)),
        missing_context=find_missing(plan, run.context),
        failures=tuple(_describe_failures(run)),
    )


def _without_failed(run: Run) -> RunPlan:
    """Return the plan without the candidates whose servers failed before anything was measured."""
    failed = {each.candidate for each in run.omissions if each.error}
    return run.plan.keep_arms([arm.name for arm in run.plan.arms if arm.name not in failed])


def _describe_failures(run: Run) -> Iterator[Finding]:
    for each in run.omissions:
        if each.candidate is not None and each.error:
            text = f"{each.candidate} was not measured, as its server failed: {each.error}"
            yield Finding.error(
                "server-failed", text, where=each.candidate, fix="Mend it, then go on with --resume: it is tried again."
            )


def _find_scope(run: Run, comparisons: Sequence[Comparison]) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        repeats={each.name: each.num_repeats for each in run.plan.workloads if each.num_repeats},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=run.context.model_name or "",
        dtype=run.context.model.dtype or "",
        hardware=_find_hardware(run.context),
        servers=tuple(dict.fromkeys(_list_versions(run))),
        unproven=tuple(dict.fromkeys(each.candidate for each in comparisons if _is_unproven(each))),
    )


def _is_unproven(comparison: Comparison) -> bool:
    """Return whether no counter proves the candidate's speculation."""
    return any(finding.code == UNPROVEN for finding in comparison.findings)


def _find_hardware(context: RunContext) -> tuple[str, ...]:
    """Return what all servers run on as the operator told it, else as each tells it, else as it was seen here."""
    hardware = context.hardware
    if hardware.told:
        return (hardware.told,)
    of_servers = tuple(dict.fromkeys(each.hardware for each in context.servers.values() if each.hardware))
    if of_servers or hardware.gpus or not hardware.cpu:
        return of_servers or tuple(map(str, hardware.gpus))
    return (f"{hardware.cores} cores of {hardware.cpu}" if hardware.cores else hardware.cpu,)


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        if server.release:
            yield f"{server.version.get('engine', '')} {server.release}".strip()


def _find_unmeasured(run: Run, plan: RunPlan) -> Iterator[UnmeasuredCell]:
    """Yield the cells with fewer repetitions than were planned, and those for which a workload has too few prompts.

    A block counts when the candidate and the baseline both finished it, be it disturbed: those are lost, and said
    where the numbers are. Cells that an adaptive run stopped early had all the repetitions that they needed.
    """
    baseline, *candidates = (arm.name for arm in plan.arms)
    stopped = {each.key for each in run.settled}
    done = {(turn.arm, turn.workload, turn.condition, turn.repeat, turn.block) for turn in (*run.turns, *run.set_aside)}
    planned = list_planned(run)
    for workload, condition, candidate in product(run.plan.workloads, run.conditions, candidates):
        place = (workload.name, condition.label)
        wanted = planned.get((candidate, *place), {})
        counts = {
            repeat: sum(all((arm, *place, repeat, block) in done for arm in (baseline, candidate)) for block in numbers)
            for repeat, numbers in wanted.items()
        }
        whole = [repeat for repeat, numbers in wanted.items() if counts[repeat] == len(numbers)]
        never = not wanted and (*place, candidate) not in stopped
        if never or len(whole) < len(wanted):
            yield UnmeasuredCell(
                candidate=candidate,
                workload=workload.name,
                condition=condition,
                repetitions=len(whole),
                planned=len(wanted),
                odd_blocks=sum(count for repeat, count in counts.items() if repeat not in whole),
                blocks_each=max(map(len, wanted.values()), default=0),
                needed=count_needed(workload, condition, run.plan.turn_s) if never else None,
            )


def find_missing(plan: RunPlan, context: RunContext) -> tuple[str, ...]:
    """Return which of the context that evidence must carry (requirement E4) a run lacks."""
    hardware, model = context.hardware, context.model
    servers = [context.server(arm.name) for arm in plan.arms]
    of_servers = all(server.hardware for server in servers)
    required = {
        "hardware": hardware != Hardware() or of_servers,
        "GPU and its driver": not _need_gpu(servers) or hardware.gpus or hardware.told or of_servers,
        "model": context.model_name,
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
