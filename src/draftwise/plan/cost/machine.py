"""Computes the time of a step with and without drafting: work divided by rates, plus launch overheads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache

from draftwise.core import ModelShape
from draftwise.knowledge.advice import find_drafting_cost, read_step_costs
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.methods import get_method
from draftwise.plan.cost.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds, rates and shares from which `Machine` computes the time of a step."""

    step_s: float
    """Fixed seconds of every step."""
    row_s: float
    """Seconds per token that a step verifies, for logits and sampling."""
    bytes_per_s: float
    """Bytes per second of reading weights."""
    flops_per_s: float
    """FLOP/s of matrix products."""
    kv_bytes_per_s: float
    """Bytes per second of attention reading keys and values."""
    sharpness: float
    """Exponent p of (reading^p + computing^p)^(1/p); the larger, the more the two overlap."""
    sync_s: float
    """Seconds added to a step without asynchronous scheduling."""
    sync_per_sequence_s: float
    piecewise_s: float
    """Seconds added to a step without a full CUDA graph, if others of its size have one, or with prompts."""
    uncaptured_s: float
    """Minimum seconds of a drafting step beyond the largest captured size, whose kernels are launched one by one."""
    batch_spread: float = 1.0
    """Exponent for a mixture of experts: n sequences choose as many experts as n ** batch_spread independent tokens."""
    draft_spread: float = 1.0
    """Likewise for the n tokens that a step verifies of one sequence, which may choose more similarly."""
    drafting: Mapping[str, float] = field(default_factory=dict)
    """Factor on the overhead of a kind of drafting (`Drafting.kind`) in `knowledge.advice`; 1 by default."""

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
    """What is known about a machine's constants before any measurement."""

    constants: Constants
    spread: Mapping[str, float]
    """Standard deviation of the logarithm of each constant."""
    drafting_spread: float
    """Standard deviation of the logarithm of each method's factor on its overhead."""
    tolerance: float = 0.03
    """Relative error of the physics in addition to the measurement's (kernel switches, tiles)."""
    rows_sd: float = 0.04
    """Error of the physics that steps with equal rows share (standard deviation of the logarithm)."""
    rows_reach: float = 0.9
    """Logarithm of the ratio of rows over which that error changes."""

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
"""Spread between hosts and cards of one data sheet: rates differ little, times of the host by a factor of two."""
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
"""Rates are known to an order of magnitude without a data sheet; no graphs, no asynchronous steps."""


def gpu_prior(gpu: Gpu, *, fast_arithmetic: bool = False) -> Prior:
    """Return the constants from a GPU's data sheet, scaled by measured shares (`knowledge.advice`)."""
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
    """Return orders of magnitude for a CPU; a calibration decides.

    The cost of more rows was measured with 4-bit weights (benchmarks/cpu/results/packed_rows.json): 4 rows take 1.31
    times one.
    """
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


class Graph(StrEnum):
    """How a server launches the kernels of a step."""

    FULL = "full"
    """One CUDA graph, or no need for one."""
    PIECEWISE = "piecewise"
    """Graphs between attention layers: steps of mixed lengths, with prompt tokens, or in a hole of the grid."""
    NONE = "none"
    """No graph: beyond the largest captured size, kernels are launched one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """Sequences that decode together."""

    sequences: float
    context: float
    """Mean context length, in tokens."""

    def kv_bytes(self, shape: ModelShape, tensor_parallel_size: int, bytes_per_value: int) -> float:
        """Return the bytes of keys and values that one step reads on each GPU."""
        per_sequence = sum(
            values * min(self.context, window or self.context)
            for values, window in _kept_by_window(shape, tensor_parallel_size)
        )
        return float(self.sequences * per_sequence * bytes_per_value)


@cache
def _kept_by_window(shape: ModelShape, tensor_parallel_size: int) -> tuple[tuple[int, int | None], ...]:
    """Return how many values of a token the layers of each window keep on each GPU. Asked for in every step."""
    kept: dict[int | None, int] = {}
    for layer in shape.kv_layers():
        kept[layer.window] = kept.get(layer.window, 0) + layer.values_per_rank(tensor_parallel_size)
    return tuple((values, window) for window, values in kept.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What determines the drafting time of a method."""

    method: str
    work: Work | None
    """Work of one pass of the drafter; None if it has no weights."""
    asynchronous: bool
    """Whether the server keeps asynchronous scheduling with it."""
    kv_bytes_per_token: float = 0.0
    """KV bytes per token of the drafter's own layers, on each GPU."""
    parallel: bool = False
    """Whether a drafter that usually makes one pass per token makes one for all (`parallel_drafting`)."""

    @property
    def one_pass(self) -> bool:
        """Whether all draft tokens come from one pass."""
        return self.parallel or get_method(self.method).network != "chain"

    @property
    def kind(self) -> str:
        """Label that drafters of equal overhead share: the method, and whether it drafts in parallel."""
        return f"{self.method} parallel" if self.parallel else self.method

    @property
    def is_lookup(self) -> bool:
        """Whether it drafts as many tokens as it finds, without weights."""
        return not get_method(self.method).has_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """What a server computes in one step."""

    batch: DecodeBatch
    drafting: Drafting | None = None
    """None without speculation."""
    drafted: float = 0.0
    """Draft tokens per sequence, made for the next step."""
    verified: float = 0.0
    """Draft tokens verified per sequence; fewer than drafted under a schedule that verifies less."""
    prefill_tokens: float = 0.0
    """Prompt tokens computed in the same step."""
    graph: Graph = Graph.FULL
    padded_rows: float | None = None
    """Tokens to which its graph pads the step; None without padding."""

    @property
    def rows(self) -> float:
        """Tokens that the target's pass computes."""
        own = self.batch.sequences * (self.verified + 1)
        return max(own, self.padded_rows or 0.0) + self.prefill_tokens

    @property
    def sampled_rows(self) -> float:
        """Rows whose next token is sampled: all except those of prompts."""
        return self.rows - self.prefill_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A target on its machine."""

    constants: Constants
    work: Work
    shape: ModelShape
    tensor_parallel_size: int = 1
    kv_bytes_per_value: int = 2
    asynchronous: bool = True
    """Whether the server schedules asynchronously without speculation."""

    def seconds(self, step: DecodeStep) -> float:
        """Return how long a step lasts."""
        constants, drafting = self.constants, step.drafting
        asynchronous = self.asynchronous if drafting is None else drafting.asynchronous
        time = self._verify_s(step)
        if drafting is not None and step.drafted:
            time += self._draft_s(step, drafting)
        if not asynchronous:
            time += constants.sync_s + step.batch.sequences * constants.sync_per_sequence_s
        if step.graph is Graph.PIECEWISE or (step.graph is Graph.NONE and step.prefill_tokens):
            time += constants.piecewise_s
        return max(time, constants.uncaptured_s) if step.graph is Graph.NONE and drafting is not None else time

    def baseline_s(self, batch: DecodeBatch) -> float:
        """Return the seconds of a step without drafting."""
        return self.seconds(DecodeStep(batch=batch))

    def drafting_s(self, batch: DecodeBatch, drafting: Drafting, k: int) -> float:
        """Return the seconds of a step that drafts and verifies k tokens per sequence."""
        return self.seconds(DecodeStep(batch=batch, drafting=drafting, drafted=k, verified=k))

    def idle_s(self, batch: DecodeBatch, drafting: Drafting) -> float:
        """Return the seconds of a step that verifies nothing while the drafter makes one pass to keep its cache
        complete, as with k = 0 in a schedule."""
        return self.seconds(DecodeStep(batch=batch, drafting=drafting, drafted=1, verified=0))

    def break_even(self, batch: DecodeBatch, drafting: Drafting, k: int) -> float:
        """Return the tokens per step and sequence at which drafting is as fast as the baseline."""
        return self.drafting_s(batch, drafting, k) / self.baseline_s(batch)

    @property
    def balance_rows(self) -> float:
        """Tokens per step from which arithmetic takes longer than reading all weights."""
        whole = self.work.dense_bytes + self.work.expert_bytes
        return whole / self.constants.bytes_per_s / (self.work.flops_per_row / self.constants.flops_per_s)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds that the arithmetic of a prompt takes."""
        return tokens * self.work.flops_per_row / self.constants.flops_per_s

    def _verify_s(self, step: DecodeStep) -> float:
        constants = self.constants
        keys = step.batch.kv_bytes(self.shape, self.tensor_parallel_size, self.kv_bytes_per_value)
        target = self._pass_s(self.work, step.batch.sequences, step.rows, step.sampled_rows)
        return constants.step_s + step.sampled_rows * constants.row_s + target + keys / constants.kv_bytes_per_s

    def _draft_s(self, step: DecodeStep, drafting: Drafting) -> float:
        """Return the seconds of a first pass over all rows and of those that follow, over one row a sequence."""
        cost, sequences = find_drafting_cost(drafting.method), step.batch.sequences
        if cost is None:
            raise KeyError(drafting.method)
        factor = self.constants.drafting.get(drafting.kind, 1.0)
        time = factor * (step.drafted * cost.per_token_s + cost.per_step_s)
        if drafting.work is None:
            return time
        passes = 1.0 if drafting.one_pass else step.drafted
        time += self._pass_s(drafting.work, sequences, step.rows, sequences * step.drafted / passes)
        time += (passes - 1) * self._pass_s(drafting.work, sequences, sequences, sequences)
        keys = passes * sequences * step.batch.context * drafting.kv_bytes_per_token
        return time + keys / self.constants.kv_bytes_per_s

    def choosers(self, sequences: float, rows: float) -> float:
        """Return the number of independent tokens that would choose as many experts as these rows."""
        constants = self.constants
        return float(sequences**constants.batch_spread * (rows / sequences) ** constants.draft_spread)

    def _pass_s(self, work: Work, sequences: float, rows: float, sampled_rows: float) -> float:
        """Return the seconds of one pass: reading its weights and computing its rows overlap in part."""
        constants, body = self.constants, work.flops_per_row - work.head_flops_per_row
        reading = work.bytes_for(self.choosers(sequences, rows)) / constants.bytes_per_s
        computing = (rows * body + sampled_rows * work.head_flops_per_row) / constants.flops_per_s
        longer, shorter = max(reading, computing), min(reading, computing)
        return float(longer * (1 + (shorter / longer) ** constants.sharpness) ** (1 / constants.sharpness))
