"""How long a step lasts, with and without drafting: work divided by rates, and the overheads of launching it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from draftwise.core import ModelShape
from draftwise.knowledge.advice import find_drafting_cost
from draftwise.knowledge.methods import get_method
from draftwise.plan.cost.constants import Constants
from draftwise.plan.cost.work import Work

__all__ = ["Batch", "Drafting", "Graph", "Machine", "Step"]


class Graph(StrEnum):
    """How a server launches the kernels of a step."""

    FULL = "full"
    """As one CUDA graph, or without any need for one."""
    PIECEWISE = "piecewise"
    """As graphs between attentions: steps of mixed lengths, with a prompt's tokens, or in a hole of the grid."""
    NONE = "none"
    """One by one: beyond the largest captured size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences that decode together."""

    sequences: float
    context: float
    """Mean context length, in tokens."""

    def kv_bytes(self, shape: ModelShape, tensor_parallel_size: int, bytes_per_value: int) -> float:
        """Return the bytes of keys and values that one step reads on each GPU."""
        per_sequence = sum(
            values * min(self.context, window or self.context)
            for values, window in _kept_by_layer(shape, tensor_parallel_size)
        )
        return float(self.sequences * per_sequence * bytes_per_value)


@cache
def _kept_by_layer(shape: ModelShape, tensor_parallel_size: int) -> tuple[tuple[int, int | None], ...]:
    """Return how many values of a token each layer keeps on each GPU, and its window; asked for in every step."""
    return tuple((layer.values_per_rank(tensor_parallel_size), layer.window) for layer in shape.kv_layers())


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What determines how long a method takes to draft."""

    method: str
    work: Work | None
    """Of one pass of the drafter; None if it has no weights."""
    asynchronous: bool
    """Whether the server keeps asynchronous scheduling with it."""
    kv_bytes_per_token: float = 0.0
    """Of the drafter's own layers, on each GPU."""
    parallel: bool = False
    """Whether a drafter that usually makes one pass a token makes one for all (`parallel_drafting`)."""

    @property
    def one_pass(self) -> bool:
        """Whether all draft tokens come from one pass."""
        return self.parallel or get_method(self.method).network != "chain"

    @property
    def kind(self) -> str:
        """What drafters of equal overhead have in common: the method, and whether it drafts in parallel."""
        return f"{self.method} parallel" if self.parallel else self.method

    @property
    def is_lookup(self) -> bool:
        """Whether it drafts as many tokens as it finds, without weights."""
        return not get_method(self.method).has_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a server computes in one step."""

    batch: Batch
    drafting: Drafting | None = None
    """None without speculation."""
    drafted: float = 0.0
    """Tokens drafted a sequence, for the next step."""
    verified: float = 0.0
    """Draft tokens verified a sequence; fewer than are drafted under a schedule that verifies less."""
    prefill_tokens: float = 0.0
    """Tokens of prompts that are computed in the same step."""
    graph: Graph = Graph.FULL
    padded_rows: float | None = None
    """Tokens that the step is padded to by its graph; None where it is not padded."""

    @property
    def rows(self) -> float:
        """Tokens that the target's pass computes."""
        own = self.batch.sequences * (self.verified + 1)
        return max(own, self.padded_rows or 0.0) + self.prefill_tokens

    @property
    def sampled_rows(self) -> float:
        """Rows whose next token is chosen: all but those of prompts."""
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

    def seconds(self, step: Step) -> float:
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

    def baseline_s(self, batch: Batch) -> float:
        """Return the seconds of a step without drafting."""
        return self.seconds(Step(batch=batch))

    def drafting_s(self, batch: Batch, drafting: Drafting, k: int) -> float:
        """Return the seconds of a step that drafts and verifies k tokens a sequence."""
        return self.seconds(Step(batch=batch, drafting=drafting, drafted=k, verified=k))

    def idle_s(self, batch: Batch, drafting: Drafting) -> float:
        """Return the seconds of a step that verifies nothing while the drafter makes one pass, as k = 0 in a schedule
        does: it stays in step with the target."""
        return self.seconds(Step(batch=batch, drafting=drafting, drafted=1, verified=0))

    def break_even(self, batch: Batch, drafting: Drafting, k: int) -> float:
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

    def _verify_s(self, step: Step) -> float:
        constants = self.constants
        keys = step.batch.kv_bytes(self.shape, self.tensor_parallel_size, self.kv_bytes_per_value)
        target = self._pass_s(self.work, step.batch.sequences, step.rows, step.sampled_rows)
        return constants.step_s + step.sampled_rows * constants.row_s + target + keys / constants.kv_bytes_per_s

    def _draft_s(self, step: Step, drafting: Drafting) -> float:
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
        """Return how many tokens that choose experts independently would choose as many as the rows of so many
        sequences do."""
        constants = self.constants
        return float(sequences**constants.batch_spread * (rows / sequences) ** constants.draft_spread)

    def _pass_s(self, work: Work, sequences: float, rows: float, sampled_rows: float) -> float:
        """Return the seconds of one pass: reading its weights and computing its rows overlap in part."""
        constants, body = self.constants, work.flops_per_row - work.head_flops_per_row
        reading = work.bytes_for(self.choosers(sequences, rows)) / constants.bytes_per_s
        computing = (rows * body + sampled_rows * work.head_flops_per_row) / constants.flops_per_s
        longer, shorter = max(reading, computing), min(reading, computing)
        return float(longer * (1 + (shorter / longer) ** constants.sharpness) ** (1 / constants.sharpness))
