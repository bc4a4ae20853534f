"""The constants of a machine and its server: taken from a data sheet, or fitted to measured steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftwise.knowledge.advice import read_step_costs
from draftwise.knowledge.gpus import Gpu

__all__ = ["Constants", "Prior", "cpu_prior", "gpu_prior"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds, rates and shares from which `Machine` computes the time of a step."""

    step_s: float
    """Of every step, whatever it computes."""
    row_s: float
    """Of every token that a step verifies: logits and sampling."""
    bytes_per_s: float
    """At which weights are read."""
    flops_per_s: float
    """At which matrix products are computed."""
    kv_bytes_per_s: float
    """At which attention reads keys and values."""
    sharpness: float
    """Exponent p of (reading^p + computing^p)^(1/p): how far the two overlap; the larger, the more."""
    sync_s: float
    """Of a step that is not scheduled asynchronously."""
    sync_per_sequence_s: float
    piecewise_s: float
    """Of a step without a full CUDA graph, where others of its size have one, or with prompts."""
    uncaptured_s: float
    """The least that a drafting step takes beyond the largest captured size: its kernels are launched one by one."""
    batch_spread: float = 1.0
    """Of a mixture: n sequences choose as many experts as n ** batch_spread tokens that choose independently."""
    draft_spread: float = 1.0
    """Of a mixture: the same of the n tokens of one sequence that a step verifies, which may choose more alike."""
    drafting: Mapping[str, float] = field(default_factory=dict)
    """Factor on the overhead of a kind of drafting (`Drafting.kind`) in `knowledge.advice`; 1 where none is given."""

    def with_logs(self, names: Sequence[str], logs: Sequence[float]) -> Constants:
        """Return the constants with some of them set to the exponentials of numbers.

        Args:
            names: fields, or `drafting.KIND`.
            logs: one for each name.
        """
        values = {name: math.exp(log) for name, log in zip(names, logs, strict=True)}
        factors = {name.removeprefix(_FACTOR): each for name, each in values.items() if name.startswith(_FACTOR)}
        own = {name: each for name, each in values.items() if not name.startswith(_FACTOR)}
        return replace(self, **own, drafting={**self.drafting, **factors})

    def log(self, name: str) -> float:
        """Return the logarithm of a constant."""
        if name.startswith(_FACTOR):
            return math.log(self.drafting.get(name.removeprefix(_FACTOR), 1.0))
        return math.log(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of a machine's constants before anything is measured on it."""

    constants: Constants
    spread: Mapping[str, float]
    """Standard deviation of the logarithm of each constant."""
    drafting_spread: float
    """Of the factors on the overheads of methods."""
    tolerance: float = 0.03
    """Relative: what the physics may miss of a step (kernels that switch, tiles), beside what measuring missed."""
    rows_sd: float = 0.04
    """What the physics misses of steps with as many rows (standard deviation of the logarithm)."""
    rows_reach: float = 0.9
    """Over which ratio of rows (e^reach) that changes."""

    def spread_of(self, name: str) -> float:
        """Return the standard deviation of a constant's logarithm."""
        return self.drafting_spread if name.startswith(_FACTOR) else self.spread[name]


_FACTOR = "drafting."
_GPU_SPREAD = {
    "step_s": 0.8,
    "row_s": 1.0,
    "bytes_per_s": 0.15,
    "flops_per_s": 0.25,
    "kv_bytes_per_s": 0.3,
    "sharpness": 0.5,
    "sync_s": 0.7,
    "sync_per_sequence_s": 0.8,
    "piecewise_s": 0.5,
    "uncaptured_s": 0.5,
    "batch_spread": 0.2,
    "draft_spread": 0.5,
}
"""Between hosts and cards of one data sheet: rates differ by little, times of the host by a factor of two."""
_CPU_SPREAD = {
    **dict.fromkeys(_GPU_SPREAD, 1.5),
    "sharpness": 0.5,
    "sync_s": 0.01,
    "sync_per_sequence_s": 0.01,
    "piecewise_s": 0.01,
    "uncaptured_s": 0.01,
    "batch_spread": 0.2,
    "draft_spread": 0.5,
}
"""Without a data sheet rates are only known to an order of magnitude; there are no graphs and no asynchronous steps."""


def gpu_prior(gpu: Gpu, *, fast_arithmetic: bool = False) -> Prior:
    """Return what a data sheet says of a GPU, at the shares of it that were measured (`knowledge.advice`).

    Args:
        gpu: with its bandwidth and arithmetic rate.
        fast_arithmetic: whether matrix products run in FP8.
    """
    costs = read_step_costs()
    tflops = gpu.fp8_tflops if fast_arithmetic and gpu.fp8_tflops else gpu.bf16_tflops
    constants = Constants(
        step_s=costs.step_s,
        row_s=costs.row_s,
        bytes_per_s=1e9 * gpu.bandwidth_gbs * costs.bandwidth_share,
        flops_per_s=1e12 * tflops * costs.flops_share,
        kv_bytes_per_s=1e9 * gpu.bandwidth_gbs * costs.kv_bandwidth_share,
        sharpness=costs.sharpness,
        sync_s=costs.sync_s,
        sync_per_sequence_s=costs.sync_per_sequence_s,
        piecewise_s=costs.piecewise_s,
        uncaptured_s=costs.uncaptured_s,
    )
    return Prior(constants=constants, spread=_GPU_SPREAD, drafting_spread=0.8)


def cpu_prior() -> Prior:
    """Return orders of magnitude for a processor: a calibration decides."""
    constants = Constants(
        step_s=1e-3,
        row_s=5e-5,
        bytes_per_s=2e10,
        flops_per_s=2e11,
        kv_bytes_per_s=1e10,
        sharpness=2.0,
        sync_s=1e-9,
        sync_per_sequence_s=1e-9,
        piecewise_s=1e-9,
        uncaptured_s=1e-9,
    )
    # Libraries for processors take other ways for 1, 2 and more rows.
    rough = Prior(constants=constants, spread=_CPU_SPREAD, drafting_spread=1.5)
    return replace(rough, tolerance=0.08, rows_sd=0.12, rows_reach=0.5)
