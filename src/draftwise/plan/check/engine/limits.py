"""How many requests and tokens a step has: as given, or by the server's GPU where that is known."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.core import InvalidSetup
from draftwise.facts.gpus import Gpu, get_gpu
from draftwise.facts.memory import get_batch_defaults
from draftwise.plan.check.context import Context

__all__ = ["Limits", "find_gpu", "get_limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step of the engine may hold; None where it depends on a device that is not known here."""

    tokens: int | None
    """`max_num_batched_tokens`."""
    requests: int | None
    """`max_num_seqs`."""


def get_limits(context: Context) -> Limits:
    """Return the limits of a step: flags go before the defaults of `vllm serve` on the setup's GPU."""
    gpu = find_gpu(context)
    usual = {} if gpu is None else get_batch_defaults(gpu, context.release)
    tokens, requests = (context.size(name) or usual.get(name) for name in ("max_num_batched_tokens", "max_num_seqs"))
    return Limits(tokens, requests)


def find_gpu(context: Context) -> Gpu | None:
    """Return the setup's GPU; None for a CPU and for one that is not in the table."""
    device = context.setup.device
    if device is None or context.platform == "cpu":
        return None
    try:
        return get_gpu(device.name)
    except InvalidSetup:
        return None
