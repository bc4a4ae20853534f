"""A paired A/B measurement as it was recorded: what was planned, and everything that came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftwise.core.config import SpecConfig
from draftwise.core.stats import SpecStats
from draftwise.core.timing import Timing
from draftwise.core.workload import Workload

__all__ = ["Answer", "Arm", "Counters", "Divergence", "Run", "RunPlan", "Window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of the comparison; all arms are alike but for `spec`."""

    name: str
    spec: SpecConfig | None = None
    url: str | None = None
    """Of a server that is already running; None when draftwise starts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a run sends, decided before its first request. The first arm is the plain one."""

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    repeats: int = 5
    warmup: int = 3
    temperature: float = 0.0
    seed: int = 0
    concurrency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Readings of a server's counters, or their growth over a window; None where it does not report them."""

    spec: SpecStats = field(default_factory=SpecStats)
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None

    def __sub__(self, before: Counters) -> Counters:
        return self._combine(before, -1)

    def __add__(self, other: Counters) -> Counters:
        return self._combine(other, 1)

    def _combine(self, other: Counters, sign: int) -> Counters:
        def each(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + sign * b

        return Counters(
            spec=self.spec + other.spec if sign > 0 else self.spec - other.spec,
            generation_tokens=each(self.generation_tokens, other.generation_tokens),
            prefix_queries=each(self.prefix_queries, other.prefix_queries),
            prefix_hits=each(self.prefix_hits, other.prefix_hits),
        )

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens per decoding step of a sequence: generated / (generated - accepted).

        Every step emits one token more than it accepts, so this also counts the steps for which nothing
        was drafted, which `SpecStats.acceptance_length` leaves out.
        """
        if not self.generation_tokens or self.generation_tokens <= self.spec.num_accepted_tokens:
            return None
        return self.generation_tokens / (self.generation_tokens - self.spec.num_accepted_tokens)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the prompt tokens looked up in the prefix cache that were found there."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries and self.prefix_hits is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request brought back."""

    turn: int
    arm: str
    workload: str
    prompt_id: str
    repeat: int
    """Which pass over the workload, from 1."""
    timing: Timing
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """Empty where the server does not report them."""
    prompt_token_ids: tuple[int, ...] = ()
    num_prompt_tokens: int | None = None
    finish_reason: str | None = None
    counts_exact: bool = True
    """Whether the server said how many tokens each chunk holds (else one a chunk is assumed)."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One turn of one arm: a block of prompts sent with nothing else on that server."""

    turn: int
    arm: str
    workload: str
    repeat: int
    counters: Counters
    """Growth of the server's counters from just before the turn to just after it."""
    wall_s: float
    client_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Both servers' view of the position where two greedy outputs part."""

    workload: str
    prompt_id: str
    candidate: str
    position: int
    """Output tokens that both share."""
    plain_token: int | None
    candidate_token: int | None
    """None where that output had ended."""
    gap: float | None
    """Smaller of the two servers' log-probability gaps between their best and second-best token (nats)."""
    among_best: bool | None = None
    """Whether both tokens are among the two best of both servers; None where they give no token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a run left behind; every number of a report is a function of it."""

    plan: RunPlan
    context: Mapping[str, Any]
    """Hardware, software, model and servers: JSON values, by the names that `measure.context` gives them."""
    answers: tuple[Answer, ...] = ()
    windows: tuple[Window, ...] = ()
    divergences: tuple[Divergence, ...] = ()
