"""Places each arm's server on GPUs, and divides their memory if several share them."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from draftwise.core import Setup
from draftwise.knowledge.messages import refusal

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Arguments whose product is a server's number of GPUs."""
_DRIVER_S = 20.0
_UTILIZATION = "gpu_memory_utilization"
_TOTAL = 0.9
"""Default share of a GPU for all servers on it together (vLLM's default up to 0.19; 0.92 since): each server has a CUDA
context and graphs outside its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlacement:
    """Where one arm's server runs."""

    gpus: tuple[str, ...]
    """GPU ids, as in CUDA_VISIBLE_DEVICES."""
    sharing: int = 1
    """Number of servers on these GPUs, including this one. Idle ones hold their memory."""
    utilization: float | None = None
    """Share of each GPU's memory; None keeps the operator's setting or vLLM's default."""

    @property
    def env(self) -> dict[str, str]:
        """The server's environment variables."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}

    @property
    def told(self) -> dict[str, object]:
        """Entries that a run stores."""
        return {"gpus": ",".join(self.gpus), "servers_on_these_gpus": self.sharing}

    def apply(self, setup: Setup) -> Setup:
        """Return a setup with its share of GPU memory."""
        if self.utilization is None:
            return setup
        return replace(setup, args={**setup.args, _UTILIZATION: self.utilization})


def place_arms(num_arms: int, gpus: Sequence[str], args: Mapping[str, Any]) -> tuple[GpuPlacement, ...]:
    """Return where each arm runs: on separate GPUs if there are enough, otherwise several on the same.

    Every arm gets the same share of memory, even with GPUs to itself: a larger KV cache would be another difference
    than the speculative config.

    Args:
        num_arms: number of servers that run at the same time.
        gpus: usable GPUs of this machine, as in CUDA_VISIBLE_DEVICES.
        args: `Setup.args` of the arms: GPUs per server and share of their memory.

    Raises:
        InvalidSetup: a server needs more GPUs than are available.
    """
    size = count_gpus_per_arm(args)
    groups = [tuple(gpus[start : start + size]) for start in range(0, len(gpus) - size + 1, size)]
    if not groups:
        raise refusal("too-few-gpus", size=size, num_gpus=len(gpus))
    groups = groups[:num_arms]
    most = math.ceil(num_arms / len(groups))
    total = args.get(_UTILIZATION) or _TOTAL
    utilization = None if most == 1 else math.floor(100 * total / most) / 100
    counts = [len(range(number, num_arms, len(groups))) for number in range(len(groups))]
    return tuple(
        GpuPlacement(gpus=groups[arm % len(groups)], sharing=counts[arm % len(groups)], utilization=utilization)
        for arm in range(num_arms)
    )


def count_gpus_per_arm(args: Mapping[str, Any]) -> int:
    """Return the number of GPUs of a vLLM server with these arguments."""
    return prod(args.get(name) or 1 for name in _PARALLEL)


def find_gpus() -> tuple[str, ...]:
    """Return the usable NVIDIA GPUs, according to CUDA_VISIBLE_DEVICES if set; empty without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(each.strip() for each in visible.split(",") if each.strip() not in ("", "-1"))
    return tuple(ask_driver("index"))


def ask_driver(fields: str) -> list[str]:
    """Return one line per NVIDIA GPU; empty if nvidia-smi is absent, fails or hangs.

    Args:
        fields: comma-separated fields of `nvidia-smi --query-gpu`.
    """
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_DRIVER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines() if answer.returncode == 0 else []
