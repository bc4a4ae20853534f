"""What the numbers depend on: hardware, software, model and servers."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftwise.backends import Backend
from draftwise.backends.gpus import ask_driver
from draftwise.checkpoints.headers import read_headers
from draftwise.core import InvalidSetup
from draftwise.version import __version__

__all__ = ["describe_hardware", "describe_model", "describe_server", "describe_software"]


def describe_hardware() -> dict[str, Any]:
    """Return processor, usable cores, memory and GPUs of this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described: dict[str, Any] = {"cpu": _cpu_name(), "cores": cores, "memory_gib": _memory_gib()}
    if gpus := ask_driver("name,memory.total,driver_version"):
        described["gpus"] = gpus
    return described


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def describe_software(*, with_engine: bool) -> dict[str, str]:
    """Return the versions of what measures and, for the embedded engine, of what computes."""
    described = {"os": platform.platform(), "python": platform.python_version(), "draftwise": __version__}
    if with_engine:
        with suppress(PackageNotFoundError):
            described["torch"] = version("torch")
    return described


def describe_model(target: Path) -> dict[str, Any]:
    """Return the identity of a checkpoint on disk; what cannot be read is left out."""
    described: dict[str, Any] = {"name": target.resolve().name}
    config_file = target / "config.json"
    if config_file.is_file():
        text = config_file.read_bytes()
        config = json.loads(text)
        described["config_sha256"] = sha256(text).hexdigest()
        described["architecture"] = (config.get("architectures") or [config.get("model_type")])[0]
        described["dtype"] = config.get("dtype") or config.get("torch_dtype")
    with suppress(InvalidSetup):
        described["parameters"] = read_headers(target).num_elements
    return {key: value for key, value in described.items() if value is not None}


async def describe_server(backend: Backend) -> dict[str, Any]:
    """Return how a started server was started, what it says about itself, and how that start went."""
    info = await backend.describe()
    return {
        "command": backend.command,
        "url": backend.url,
        "model": info.model,
        "max_model_len": info.max_model_len,
        "version": dict(info.version),
        "started": dict(info.started),
    }
