"""Which context a run fails to carry that a reader needs to trust its numbers."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.core import RunContext, RunPlan, ServerRecord, TargetModel

__all__ = ["find_missing"]


def find_missing(plan: RunPlan, context: RunContext) -> tuple[str, ...]:
    """Return which of the context that evidence must carry (requirement E4) a run lacks."""
    hardware, model = context.hardware, context.model
    servers = [context.server(arm.name) for arm in plan.arms]
    required = {
        "hardware": hardware.to_dict(),
        "GPU and its driver": not _need_gpu(servers) or hardware.gpus or hardware.told,
        "model": model.name,
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
