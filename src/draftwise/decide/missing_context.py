"""Which context a run fails to carry that a reader needs to trust its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.core import RunPlan

__all__ = ["find_missing"]


def find_missing(plan: RunPlan, context: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which of the context that evidence must carry (requirement E4) a run lacks."""
    hardware, model = context.get("hardware", {}), context.get("model", {})
    servers = {arm.name: context.get("servers", {}).get(arm.name, {}) for arm in plan.arms}
    required = {
        "hardware": hardware,
        "GPU and its driver": not _need_gpu(servers) or hardware.get("gpus") or hardware.get("as told"),
        "model": model.get("name"),
        "precision": _precision(model, servers),
        "runtime version": all(server.get("version", {}).get("version") for server in servers.values()),
        "request parameters": plan.repeats and plan.conditions,
        "workload": plan.workloads and all(workload.prompts for workload in plan.workloads),
        "serve command of every arm": all(server.get("command") for server in servers.values()),
    }
    return tuple(name for name, given in required.items() if not given)


def _need_gpu(servers: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a server says that it computes on a GPU."""
    devices = (str(server.get("version", {}).get("device", "")) for server in servers.values())
    return any(device.startswith("cuda") for device in devices) or any(
        server.get("started", {}).get("gpus") for server in servers.values()
    )


def _precision(model: Mapping[str, Any], servers: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the precision: as told or found on disk (`auto` says nothing), else the one that all servers tell."""
    if model.get("dtype") not in (None, "auto"):
        return str(model["dtype"])
    told = {server.get("version", {}).get("dtype") for server in servers.values()}
    return str(told.pop()) if len(told) == 1 and None not in told else None
