"""How long a decode step lasts, with and without drafting: estimated from a data sheet and measured overheads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwise.core import ModelShape
from draftwise.facts.advice import read_step_costs
from draftwise.facts.gpus import Gpu
from draftwise.plan.forecast.work import Work

__all__ = ["Batch", "Drafting", "Machine", "choose_best_k", "compute_acceptance_length", "find_acceptance"]

_CLOSE_ENOUGH = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences that decode together."""

    sequences: int
    context: int
    """Mean context length, in tokens."""

    def kv_bytes(self, shape: ModelShape, tensor_parallel_size: int, bytes_per_value: int) -> float:
        """Return the bytes of keys and values that one step reads on each GPU."""
        per_sequence = sum(
            layer.values_per_rank(tensor_parallel_size) * min(self.context, layer.window or self.context)
            for layer in shape.kv_layers()
        )
        return float(self.sequences * per_sequence * bytes_per_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What determines how long a method takes to draft."""

    method: str
    work: Work | None
    """Of one pass of the drafter; None if it has no weights."""
    asynchronous: bool
    """Whether the server keeps asynchronous scheduling with it."""

    @property
    def one_pass(self) -> bool:
        """Whether all draft tokens come from one pass."""
        return read_step_costs().get_drafting(self.method).per_token_s == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A target on its GPUs."""

    gpu: Gpu
    work: Work
    shape: ModelShape
    tensor_parallel_size: int
    kv_bytes_per_value: int = 2
    fast_arithmetic: bool = False
    """Whether matrix products run in FP8."""
    asynchronous: bool = True
    """Whether the server schedules asynchronously without speculation."""

    def baseline_s(self, batch: Batch) -> float:
        """Return the seconds of a step without drafting."""
        return self._verify_s(batch, 1) + (0.0 if self.asynchronous else _sync_s(batch))

    def drafting_s(self, batch: Batch, drafting: Drafting, k: int) -> float:
        """Return the seconds of a step that drafts and verifies k tokens a sequence."""
        cost = read_step_costs().get_drafting(drafting.method)
        passes = 1 if drafting.one_pass else k
        work = 0.0 if drafting.work is None else self._pass_s(drafting.work, batch.sequences)
        sync = 0.0 if drafting.asynchronous else _sync_s(batch)
        return self._verify_s(batch, k + 1) + passes * work + k * cost.per_token_s + cost.per_step_s + sync

    def break_even(self, batch: Batch, drafting: Drafting, k: int) -> float:
        """Return the tokens per step and sequence at which drafting is as fast as the baseline."""
        return self.drafting_s(batch, drafting, k) / self.baseline_s(batch)

    @property
    def balance_rows(self) -> float:
        """Tokens per step from which arithmetic takes longer than reading all weights."""
        whole = self.work.dense_bytes + self.work.expert_bytes
        return whole / self._bytes_per_s / (self.work.flops_per_row / self._flops)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds that the arithmetic of a prompt takes."""
        return tokens * self.work.flops_per_row / self._flops

    def _verify_s(self, batch: Batch, rows_per_sequence: int) -> float:
        rows = batch.sequences * rows_per_sequence
        keys = batch.kv_bytes(self.shape, self.tensor_parallel_size, self.kv_bytes_per_value) / self._bytes_per_s
        costs = read_step_costs()
        return costs.step_s + rows * costs.row_s + self._pass_s(self.work, rows) + keys

    def _pass_s(self, work: Work, rows: int) -> float:
        return max(work.bytes_for(rows) / self._bytes_per_s, rows * work.flops_per_row / self._flops)

    @property
    def _bytes_per_s(self) -> float:
        return 1e9 * self.gpu.bandwidth_gbs * read_step_costs().bandwidth_share

    @property
    def _flops(self) -> float:
        fast = self.gpu.fp8_tflops if self.fast_arithmetic else None
        return 1e12 * (fast or self.gpu.bf16_tflops) * read_step_costs().flops_share


def _sync_s(batch: Batch) -> float:
    costs = read_step_costs()
    return costs.sync_s + batch.sequences * costs.sync_per_sequence_s


def compute_acceptance_length(acceptance: float, k: int) -> float:
    """Return the tokens that a step emits if each draft token is accepted with this probability, once those before it
    were."""
    return sum(acceptance**place for place in range(k + 1))


def find_acceptance(length: float, k: int) -> float:
    """Return the probability at which a step emits so many tokens: 0 to 1, the end that is nearest where none does."""
    low, high = 0.0, 1.0
    while high - low > _CLOSE_ENOUGH:
        middle = (low + high) / 2
        low, high = (low, middle) if compute_acceptance_length(middle, k) >= length else (middle, high)
    return high


def choose_best_k(machine: Machine, batch: Batch, drafting: Drafting, acceptance: float, among: Iterable[int]) -> int:
    """Return the k that emits most tokens per second; the smallest of equals."""
    return max(
        sorted(among), key=lambda k: compute_acceptance_length(acceptance, k) / machine.drafting_s(batch, drafting, k)
    )
