"""A wish with everything looked up once: release, configs, machine and the drafters that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.checkpoints.model_config import ModelConfig, find_model_config
from draftwise.checkpoints.recognize import RecognizedDrafter, recognize
from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.facts.families import PublishedDrafter, published_drafters
from draftwise.facts.models import KnownModel, find_model, suggest_models
from draftwise.facts.vllm import Release, get_release
from draftwise.plan.forecast.step_cost import Batch, Machine
from draftwise.plan.forecast.work import find_work
from draftwise.plan.pick.wish import Wish
from draftwise.plan.size.precision import Precision, get_precision, precision_of
from draftwise.plan.size.shapes import read_shape

__all__ = ["Case", "GivenDrafter", "open_case"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDrafter:
    """A drafter that the operator has."""

    name: str
    drafter: RecognizedDrafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What every rule of `pick` may look at."""

    wish: Wish
    release: Release
    target: ModelConfig
    precision: Precision
    machine: Machine | None
    """None for a target whose shape is not understood and a GPU whose speed is not known: then nothing is estimated."""
    given: tuple[GivenDrafter, ...]
    published: tuple[PublishedDrafter, ...]
    similar: tuple[PublishedDrafter, ...]
    """Made for another checkpoint of the same config: the base of an instruct model, a directory of the same name."""

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs that share every layer."""
        return _tensor_parallel_size(self.wish)

    def batch(self, sequences: int | None = None) -> Batch:
        """Return so many sequences of the traffic's length, the median concurrency by default."""
        traffic = self.wish.traffic
        return Batch(sequences=sequences or traffic.concurrency, context=traffic.context)

    def setup(self, spec: Mapping[str, Any] | None, **args: Any) -> Setup:
        """Return the deployment with a speculative config, or without one."""
        wish, size = self.wish, self.tensor_parallel_size
        parallel = {"tensor_parallel_size": size} if size > 1 else {}
        return Setup(
            target=wish.target,
            engine="vllm",
            engine_version=str(self.release),
            device=Device(name=wish.gpu.name, kind="cuda", count=wish.gpus, memory_bytes=wish.gpu.memory_bytes),
            spec=None if spec is None else SpecConfig.keep(spec),
            args={**parallel, **wish.args, **args},
        )


def open_case(wish: Wish) -> Case:
    """Look up what a wish names.

    Raises:
        InvalidSetup: the target or a drafter is not found, or the release is unknown.
    """
    target = _get_target(wish.target)
    precision = _precision(wish, target)
    exact, similar = _names(target)
    return Case(
        wish=wish,
        release=get_release(wish.version),
        target=target,
        precision=precision,
        machine=_machine(wish, target, precision),
        given=tuple(_open_drafter(name) for name in wish.drafters),
        published=published_drafters(exact),
        similar=published_drafters(similar),
    )


def _get_target(name: str) -> ModelConfig:
    found = find_model_config(name)
    if found is not None:
        return found
    close = suggest_models(name)
    raise InvalidSetup.because(
        "unknown-target",
        f"{name!r} is neither a directory nor in the table of well-known models.",
        where="TARGET",
        fix=(f"Did you mean {' or '.join(close)}? " if close else "")
        + "Otherwise give a directory with its config.json, or the JSON itself.",
    )


def _open_drafter(name: str) -> GivenDrafter:
    found = find_model_config(name)
    if found is None:
        raise InvalidSetup.because(
            "unknown-drafter",
            f"{name!r} is neither a directory nor in the table of well-known models.",
            where="--drafter",
            fix="Give the directory of the drafter: its config.json says which method it is for.",
        )
    return GivenDrafter(name=name, drafter=recognize(found.config, ()))


def _names(target: ModelConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names under which a target's drafters are published: its own, and those of its like.

    A directory is taken for the well-known model that it is named after, if the shapes agree: it may hold a fine-tuned
    copy, so that nothing is exact.
    """
    if target.origin == "table":
        row = find_model(target.name)
        names = row.names if row is not None else ()
        tail = target.name.lower().rpartition("/")[2]
        exact = tuple(name for name in names if name.lower().rpartition("/")[2] == tail)
        return exact, tuple(name for name in names if name not in exact)
    named = target.config.get("_name_or_path")
    candidates = [named] if isinstance(named, str) else []
    if target.directory is not None:
        candidates.append(Path(target.directory).resolve().name)
    for name in candidates:
        row = find_model(name)
        if row is not None and _same_shape(row, target):
            return (), row.names
    return (), ()


def _same_shape(row: KnownModel, target: ModelConfig) -> bool:
    keys = ("hidden_size", "num_hidden_layers", "vocab_size")
    ours, theirs = target.text_config, row.config.get("text_config", row.config)
    return all(ours.get(key) == theirs.get(key) for key in keys)


def _precision(wish: Wish, target: ModelConfig) -> Precision:
    given = wish.args.get("quantization")
    return get_precision(given) if isinstance(given, str) else precision_of(target.config)


def _tensor_parallel_size(wish: Wish) -> int:
    given = wish.args.get("tensor_parallel_size")
    if isinstance(given, int) and given > 0:
        return given
    others = (wish.args.get(key) for key in ("pipeline_parallel_size", "data_parallel_size"))
    share = wish.gpus
    for size in others:
        share //= size if isinstance(size, int) and size > 0 else 1
    return max(1, share)


def _machine(wish: Wish, target: ModelConfig, precision: Precision) -> Machine | None:
    size = _tensor_parallel_size(wish)
    work = find_work(target.config, precision, size)
    if work is None or not wish.gpu.bandwidth_gbs or not wish.gpu.bf16_tflops:
        return None
    return Machine(
        gpu=wish.gpu,
        work=work,
        shape=read_shape(target.config),
        tensor_parallel_size=size,
        kv_bytes_per_value=1 if str(wish.args.get("kv_cache_dtype", "")).startswith("fp8") else 2,
        fast_arithmetic=precision.name.startswith("fp8"),
        asynchronous=_schedules_asynchronously(wish),
    )


def _schedules_asynchronously(wish: Wish) -> bool:
    """Say whether the release schedules asynchronously by itself: those that list methods that may, do."""
    given = wish.args.get("async_scheduling")
    table = get_release(wish.version).table("async_scheduling")
    return given if isinstance(given, bool) else bool(table.get("default"))
