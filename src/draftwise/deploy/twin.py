"""What follows from a setup alone: its twin without speculation, and the GPUs that its flags take."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Literal

from draftwise.core import Device, Setup
from draftwise.plan.check.context import SPEC_FLAGS

__all__ = ["Pool", "count_device", "count_gpus", "without_speculation"]

Pool = Literal["spec", "plain"]
"""Which of the twins."""


def without_speculation(setup: Setup) -> Setup:
    """Return the same server without speculation."""
    args = {name: value for name, value in setup.args.items() if name not in SPEC_FLAGS}
    return replace(setup, spec=None, args=args)


def count_gpus(setup: Setup) -> int:
    """Return the GPUs that the flags ask for on this host."""
    local = "data_parallel_size_local" if "data_parallel_size_local" in setup.args else "data_parallel_size"
    sizes = (setup.args.get(flag) for flag in ("tensor_parallel_size", "pipeline_parallel_size", local))
    return prod(size for size in sizes if isinstance(size, int) and size > 0)


def count_device(setup: Setup) -> Setup:
    """Return the setup with as many GPUs as its flags take."""
    device = setup.device or Device(name="GPU", kind="cuda")
    return replace(setup, device=replace(device, count=count_gpus(setup)))
