"""Records the context of the numbers: hardware, software, model and servers."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from draftwise.backends import Backend
from draftwise.backends.address import is_served_here
from draftwise.backends.gpu_placement import ask_driver, find_gpus
from draftwise.checkpoints.gguf_files import is_gguf, list_tensors, make_config, read_gguf
from draftwise.checkpoints.headers import read_headers
from draftwise.core import (
    Arm,
    Hardware,
    InvalidSetup,
    LaunchOptions,
    Run,
    RunContext,
    ServerRecord,
    Setup,
    Software,
    TargetModel,
    cause_of,
)
from draftwise.knowledge.messages import refusal
from draftwise.machine.processes import count_cores, cpu_name
from draftwise.version import __version__

_NOTES = ("hardware", "precision", "model")
_OF_ARMS = ("hardware", "command")
"""Notes that may concern one arm: `hardware.ARM`."""


def build_context(
    arms: Sequence[Arm], *, notes: Mapping[str, str], thresholds: Mapping[str, float], launch: LaunchOptions
) -> RunContext:
    """Return the context known before the servers are up.

    Raises:
        InvalidSetup: a note has an unknown name, or the target is not a checkpoint.
    """
    _check_notes(notes, [arm.name for arm in arms])
    here = all(map(runs_here, arms))
    embedded = any(arm.url is None and arm.setup.engine == "draftwise" for arm in arms)
    started_here = arms[0].url is None
    hardware = Hardware(told=notes.get("hardware"))
    if here and "hardware" not in notes:
        hardware = describe_hardware((launch.gpus or find_gpus()) if started_here else None)
    return RunContext(
        started=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        hardware=hardware,
        software=_describe_software(with_engine=embedded),
        model=_describe_model(arms[0], notes),
        thresholds=dict(thresholds),
        notes=dict(notes),
        launch=launch,
    )


def runs_here(arm: Arm) -> bool:
    """Return whether an arm's server is known to run here: draftwise starts it, or its process is visible."""
    return arm.url is None or is_served_here(arm.url)


def add_notes(run: Run, notes: Mapping[str, str]) -> RunContext:
    """Return the context of a finished run, with notes that the operator adds.

    Raises:
        InvalidSetup: a note has an unknown name.
    """
    context = run.context
    _check_notes(notes, [arm.name for arm in run.plan.arms])
    told = {**context.notes, **notes}
    model = replace(
        context.model,
        name=notes.get("model") or context.model.name,
        dtype=notes.get("precision") or context.model.dtype,
    )
    servers = {
        arm.name: replace(
            context.server(arm.name),
            command=notes.get(f"command.{arm.name}") or context.server(arm.name).command,
            hardware=notes.get(f"hardware.{arm.name}") or context.server(arm.name).hardware,
        )
        for arm in run.plan.arms
    }
    hardware = Hardware(told=notes["hardware"]) if "hardware" in notes else context.hardware
    return replace(context, hardware=hardware, model=model, servers=servers, notes=told)


def describe_machine(hardware: Hardware) -> str:
    """Describe the hardware in words; empty if unknown."""
    own = f"{hardware.cores} cores of {hardware.cpu}" if hardware.cpu else ""
    return hardware.told or ", ".join(hardware.gpus) or own


def describe_hardware(used: Sequence[str] | None = None) -> Hardware:
    """Return this machine's processor, usable cores, memory and GPUs.

    Args:
        used: GPUs to include, as in CUDA_VISIBLE_DEVICES. None: all.
    """
    gpus = []
    for line in ask_driver("index,uuid,name,memory.total,driver_version"):
        index, uuid, told = (*line.split(", ", 2), "", "")[:3]
        if told and (used is None or any(each == index or uuid.startswith(each) for each in used)):
            gpus.append(told)
    return Hardware(cpu=cpu_name(), cores=count_cores(), memory_gib=_memory_gib(), gpus=tuple(gpus))


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return None
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def _describe_software(*, with_engine: bool) -> Software:
    described = Software(os=platform.platform(), python=platform.python_version(), draftwise=__version__)
    if with_engine:
        with suppress(PackageNotFoundError):
            return replace(described, torch=version("torch"))
    return described


def _describe_model(baseline: Arm, notes: Mapping[str, str]) -> TargetModel:
    """Return what is found of the model; what the operator tells of it goes first."""
    setup = baseline.setup
    found = _describe_target(setup) if baseline.url is None else TargetModel()
    dtype = notes.get("precision") or setup.args.get("dtype") or found.dtype
    return replace(found, name=notes.get("model") or found.name, dtype=dtype)


def _describe_target(setup: Setup) -> TargetModel:
    path = Path(setup.target)
    # vLLM finds models by name, too.
    if setup.engine == "vllm" and not path.exists():
        return TargetModel(name=setup.target)
    if is_gguf(path):
        return _read_gguf(path)
    if not path.exists():
        raise refusal("not-a-checkpoint", case="folder", path=path)
    if not (path / "config.json").is_file():
        raise refusal("not-a-checkpoint", case="config", path=path)
    try:
        return _read_checkpoint(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refusal("broken-checkpoint", path=path, cause=cause_of(error)) from None


def _read_gguf(file: Path) -> TargetModel:
    """Return the identity of a GGUF file: the config that it stands for."""
    header = read_gguf(file)
    config = make_config(header)
    return TargetModel(
        name=file.name,
        config_sha256=sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
        architecture=config["architectures"][0],
        dtype=config["torch_dtype"],
        parameters=list_tensors(header).num_elements,
    )


def _read_checkpoint(target: Path) -> TargetModel:
    """Return the identity of a checkpoint on disk; what it does not tell is left out."""
    text = (target / "config.json").read_bytes()
    config = json.loads(text)
    return TargetModel(
        name=target.resolve().name,
        config_sha256=sha256(text).hexdigest(),
        architecture=(config.get("architectures") or [config.get("model_type")])[0],
        dtype=config.get("dtype") or config.get("torch_dtype"),
        parameters=_count_parameters(target),
    )


def _count_parameters(target: Path) -> int | None:
    with suppress(InvalidSetup):
        return read_headers(target).num_elements
    return None


async def describe_server(backend: Backend, notes: Mapping[str, str]) -> ServerRecord:
    """Return a server's record: how it was started, what it reports about itself, and how the start went.

    Args:
        notes: the operator's notes. Those on hardware take precedence over the server's report.
    """
    info = await backend.describe()
    return ServerRecord(
        command=backend.command,
        url=backend.url,
        model=info.model,
        max_model_len=info.max_model_len,
        version=dict(info.version),
        started=dict(info.started),
        hardware=notes.get(f"hardware.{backend.name}") or info.hardware,
        metric_names=info.metric_names,
    )


def _check_notes(notes: Mapping[str, str], arms: Sequence[str]) -> None:
    known = [*_NOTES, *(f"{note}.{arm}" for note in _OF_ARMS for arm in arms)]
    for name in notes:
        if name not in known:
            near = get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            raise refusal("unknown-context", name=name, fix=fix)
