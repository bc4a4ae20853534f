"""How long a decode step lasts, with and without drafting: estimated from a data sheet and measured overheads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwise.core import ModelShape
from draftwise.facts.advice import step_costs
from draftwise.facts.gpus import Gpu
from draftwise.plan.forecast.work import Work

__all__ = ["Batch", "Drafting", "Machine", "acceptance_length", "best_k"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences that decode together."""

    sequences: int
    context: int
    """Tokens that each has behind it, on average."""

    def kv_bytes(self, shape: ModelShape, tensor_parallel_size: int, bytes_per_value: int) -> float:
        """Return the bytes of keys and values that one step reads on each GPU."""
        per_sequence = sum(
            layer.values_per_rank(tensor_parallel_size) * min(self.context, layer.window or self.context)
            for layer in shape.kv_layers()
        )
        return float(self.sequences * per_sequence * bytes_per_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How a method drafts, as far as time goes."""

    method: str
    work: Work | None
    """Of one pass of the drafter; None where nothing is read."""
    asynchronous: bool
    """Whether the server keeps asynchronous scheduling with it."""

    @property
    def one_pass(self) -> bool:
        """Whether all draft tokens come from one pass."""
        return step_costs().of_method(self.method).per_token_s == 0


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

    def plain_s(self, batch: Batch) -> float:
        """Return the seconds of a step without drafting."""
        return self._verify_s(batch, 1) + (0.0 if self.asynchronous else _sync_s(batch))

    def drafting_s(self, batch: Batch, drafting: Drafting, k: int) -> float:
        """Return the seconds of a step that drafts and verifies k tokens a sequence."""
        cost = step_costs().of_method(drafting.method)
        passes = 1 if drafting.one_pass else k
        work = 0.0 if drafting.work is None else self._pass_s(drafting.work, batch.sequences)
        sync = 0.0 if drafting.asynchronous else _sync_s(batch)
        return self._verify_s(batch, k + 1) + passes * work + k * cost.per_token_s + cost.per_step_s + sync

    def break_even(self, batch: Batch, drafting: Drafting, k: int) -> float:
        """Return the tokens a step and sequence that make drafting as fast as plain decoding."""
        return self.drafting_s(batch, drafting, k) / self.plain_s(batch)

    @property
    def balance_rows(self) -> float:
        """Tokens a step from which arithmetic takes longer than reading all weights."""
        whole = self.work.dense_bytes + self.work.expert_bytes
        return whole / self._bytes_per_s / (self.work.flops_per_row / self._flops)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of arithmetic that a prompt takes."""
        return tokens * self.work.flops_per_row / self._flops

    def _verify_s(self, batch: Batch, rows_per_sequence: int) -> float:
        rows = batch.sequences * rows_per_sequence
        keys = batch.kv_bytes(self.shape, self.tensor_parallel_size, self.kv_bytes_per_value) / self._bytes_per_s
        costs = step_costs()
        return costs.step_s + rows * costs.row_s + self._pass_s(self.work, rows) + keys

    def _pass_s(self, work: Work, rows: int) -> float:
        return max(work.bytes_for(rows) / self._bytes_per_s, rows * work.flops_per_row / self._flops)

    @property
    def _bytes_per_s(self) -> float:
        return 1e9 * self.gpu.bandwidth_gbs * step_costs().bandwidth_share

    @property
    def _flops(self) -> float:
        fast = self.gpu.fp8_tflops if self.fast_arithmetic else None
        return 1e12 * (fast or self.gpu.bf16_tflops) * step_costs().flops_share


def _sync_s(batch: Batch) -> float:
    costs = step_costs()
    return costs.sync_s + batch.sequences * costs.sync_per_sequence_s


def acceptance_length(chance: float, k: int) -> float:
    """Return the tokens a step emits when each draft token is accepted with this chance, given those before it were."""
    return sum(chance**place for place in range(k + 1))


def best_k(machine: Machine, batch: Batch, drafting: Drafting, chance: float, among: Iterable[int]) -> int:
    """Return the k that emits most tokens a second; the smallest where several do."""
    return max(sorted(among), key=lambda k: acceptance_length(chance, k) / machine.drafting_s(batch, drafting, k))
