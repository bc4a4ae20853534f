"""Which context a run fails to carry that a reader needs to trust its numbers, and how to supply it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from draftwise.core import RunContext, RunPlan, ServerRecord, TargetModel

__all__ = ["find_missing", "list_options"]


def find_missing(plan: RunPlan, context: RunContext) -> tuple[str, ...]:
    """Return which of the context that evidence must carry (requirement E4) a run lacks."""
    hardware, model = context.hardware, context.model
    servers = [context.server(arm.name) for arm in plan.arms]
    of_servers = all(server.hardware for server in servers)
    required = {
        "hardware": hardware.to_dict() or of_servers,
        "GPU and its driver": not _need_gpu(servers) or hardware.gpus or hardware.told or of_servers,
        "model": context.model_name,
        "precision": _precision(model, servers),
        "runtime version": all(server.release for server in servers),
        "request parameters": plan.repeats and plan.conditions,
        "workload": plan.workloads and all(workload.prompts for workload in plan.workloads),
        "serve command of every arm": all(server.command for server in servers),
    }
    return tuple(name for name, given in required.items() if not given)


def list_options(missing: Sequence[str], plan: RunPlan, context: RunContext) -> Iterator[str]:
    """Yield an option to type for each missing item that the operator can tell, with an example for a value."""
    for name in missing:
        if name == "serve command of every arm":
            unknown = [arm.name for arm in plan.arms if not context.server(arm.name).command]
            yield from (_option(f"command.{arm}", "vllm serve ...") for arm in unknown)
        elif name in _EXAMPLES:
            yield _option(*_EXAMPLES[name])


_EXAMPLES = {
    "hardware": ("hardware", "1x H200"),
    "GPU and its driver": ("hardware", "1x H200, driver 580.159"),
    "model": ("model", "Qwen/Qwen3-8B"),
    "precision": ("precision", "bfloat16"),
}
"""Note that tells a missing item, and what it may say."""


def _option(note: str, example: str) -> str:
    return f"--context {shlex.quote(note) if ' ' in note else note}={shlex.quote(example)}"


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
