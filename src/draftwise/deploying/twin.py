"""Derives from a setup alone its twin without speculation, and the hosts and GPUs that its flags take."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Literal

from draftwise.core import Device, Setup
from draftwise.knowledge.flag_types import SPEC_FLAGS

Pool = Literal["spec", "plain"]
"""A twin: with speculation (`spec`) or without (`plain`)."""


def without_speculation(setup: Setup) -> Setup:
    """Return the same server without speculation."""
    args = {name: value for name, value in setup.args.items() if name not in SPEC_FLAGS}
    return replace(setup, spec=None, args=args)


def count_hosts(setup: Setup) -> int:
    """Return the number of hosts that the ranks are spread over (`--nnodes`)."""
    hosts = setup.args.get("nnodes")
    return hosts if isinstance(hosts, int) and hosts > 0 else 1


def count_gpus(setup: Setup) -> int:
    """Return the number of GPUs that the flags request on each host."""
    local = "data_parallel_size_local" if "data_parallel_size_local" in setup.args else "data_parallel_size"
    sizes = (setup.args.get(flag) for flag in ("tensor_parallel_size", "pipeline_parallel_size", local))
    return max(prod(size for size in sizes if isinstance(size, int) and size > 0) // count_hosts(setup), 1)


def find_other_hosts(setup: Setup) -> str | None:
    """Return the flag that puts ranks of a server on other hosts; None without one."""

    def number(flag: str, default: int) -> int:
        value = setup.args.get(flag)
        return value if isinstance(value, int) else default

    ranks = number("data_parallel_size", 1)
    beyond = {
        "nnodes": count_hosts(setup) > 1,
        "node_rank": number("node_rank", 0) > 0,
        "headless": setup.args.get("headless") is True,
        "data_parallel_size_local": number("data_parallel_size_local", ranks) < ranks,
        "data_parallel_start_rank": number("data_parallel_start_rank", 0) > 0,
        "data_parallel_rank": ranks > 1 and "data_parallel_rank" in setup.args,
    }
    return next((f"--{name.replace('_', '-')}" for name, is_beyond in beyond.items() if is_beyond), None)


def count_device(setup: Setup) -> Setup:
    """Return the setup with the number of GPUs that its flags request."""
    device = setup.device or Device(name="GPU", kind="cuda")
    return replace(setup, device=replace(device, count=count_gpus(setup)))
