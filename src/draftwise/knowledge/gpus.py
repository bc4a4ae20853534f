"""GPUs: memory as the driver reports it, bandwidth and arithmetic speed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from draftwise.knowledge.messages import refusal
from draftwise.knowledge.stored import read_data

_GIB = 1 << 30
_LEAST_GIB = 1
"""Least memory of a GPU that models are served on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    architecture: str
    """NVIDIA's or AMD's name of the generation, e.g. `hopper`; `other` if only the memory is given."""
    capability: int | None = None
    """NVIDIA's compute capability, e.g. 86; None for other vendors, or if only the memory is given."""
    memory_bytes: int
    """Total memory as CUDA reports it, below the data sheet's; `gpu_memory_utilization` is a share of it."""
    bandwidth_gbs: float = 0.0
    """Memory bandwidth in GB/s; 0 if unknown."""
    bf16_tflops: float = 0.0
    """Dense matrix products in TFLOP/s, 0 if unknown; FP16 for GPUs older than Ampere."""
    fp8_tflops: float | None = None
    """Likewise in FP8; None for a GPU without it."""
    multiprocessors: int = 132
    l2_bytes: int = 60 << 20
    source: str = ""

    @property
    def memory_gib(self) -> float:
        """Total memory in GiB."""
        return self.memory_bytes / _GIB


@cache
def read_gpus() -> tuple[Gpu, ...]:
    """Return all GPUs of the table, older generations first."""
    return tuple(_read(row) for row in read_data("gpus"))


def get_gpu(name: str) -> Gpu:
    """Return a GPU by its name (`H200`, `NVIDIA L40S`, `a100-80gb`) or by its memory alone (`24GiB`, `80GB`).

    Raises:
        InvalidSetup: no such GPU.
    """
    key = _normalize(name)
    if (found := _by_name().get(key)) is not None:
        return found
    memory = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*(gi?b)", name.strip().lower())
    if memory and float(memory[1]) >= _LEAST_GIB:
        unit = _GIB if memory[2] == "gib" else 10**9
        return Gpu(name=name.strip(), architecture="other", memory_bytes=int(float(memory[1]) * unit))
    if (several := re.fullmatch(r"(\d{1,4})-?x-?(.+)", key)) and (one := _by_name().get(_normalize(several[2]))):
        raise refusal("unknown-gpu", case="several", name=name, one_name=one.name, base=several[1])
    raise refusal("unknown-gpu", name=name, names=", ".join(gpu.name for gpu in read_gpus()))


def _normalize(name: str) -> str:
    """Return a name in lower case and without its brand: `NVIDIA GeForce RTX 4090` -> `rtx-4090`."""
    words = re.sub(r"[\s_]+", "-", name.strip().lower())
    return re.sub(r"^(?:nvidia-|amd-|geforce-|tesla-|instinct-)+", "", words)


@cache
def _by_name() -> Mapping[str, Gpu]:
    return {
        _normalize(name): gpu
        for row, gpu in zip(read_data("gpus"), read_gpus(), strict=True)
        for name in (row["name"], *row["also"])
    }


def _read(row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        name=row["name"],
        architecture=row["architecture"],
        capability=row["capability"],
        memory_bytes=round(row["memory_gib"] * _GIB),
        bandwidth_gbs=row["bandwidth_gbs"],
        bf16_tflops=row["bf16_tflops"],
        fp8_tflops=row["fp8_tflops"],
        multiprocessors=row["multiprocessors"],
        l2_bytes=row["l2_mib"] << 20,
        source=row["source"],
    )
