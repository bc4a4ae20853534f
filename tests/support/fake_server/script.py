"""How a pretend server behaves, and what a measurement of it must therefore find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

__all__ = ["FakeScript", "find_crossover"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """One model of a server that batches continuously; all times in seconds, "since the start" of the server.

    A request waits until fewer than `max_running` are served, computes its prompt, then steps until its tokens are
    out. Requests step independently of each other; what they share is the batch: a step of one takes
    `step_s + row_s x (rows above knee)`, where each request served brings 1 + k rows. Speculation that gains while
    the device waits for memory thus loses when the batch is full, at a load that `find_crossover` knows.

    The output depends on the prompt alone, so that any two fakes agree (unless `differs_at`). Chance depends on
    `seed`, the prompt and how often it was asked before, not on the order in which requests come.
    """

    first_token_s: float = 0.020
    """From the start of a request to its first token, when nothing of the prompt has to be computed."""
    prefill_s: float = 0.0
    """More for each prompt token that is not in the prefix cache."""
    step_s: float = 0.004
    row_s: float = 0.0
    knee: int = 0
    max_running: int | None = None
    max_waiting: int | None = None
    """Requests beyond these get a 503."""

    k: int = 0
    """Draft tokens a step; 0 is plain decoding."""
    accepted: tuple[int, ...] = (0,)
    """Draft tokens that stand, step by step, over and over."""
    rates: tuple[float, ...] = ()
    """Instead of `accepted`: chance that the draft up to each position stands (vLLM's unconditional rates, not rising),
    one coin a step."""
    heat: float = 0.0
    """Share of each position's conditional chance that is lost per unit of temperature."""

    jitter: float = 0.0
    """Standard deviation of the logarithm of a request's slowness."""
    step_jitter: float = 0.0
    """The same for each step on its own."""
    prompt_spread: float = 0.0
    """The same for each prompt: as slow whenever it is asked."""
    slow_requests: tuple[float, float] = (0.0, 1.0)
    """(share, index): so many requests take longer, by a factor drawn from the Pareto distribution of this index."""
    drift_per_s: float = 0.0
    """Relative growth of every latency per second since the start."""
    spells: tuple[tuple[float, float, float], ...] = ()
    """(begin, end, factor) since the start: while so, every latency is so many times as long."""
    cold: tuple[tuple[int, int, float], ...] = ()
    """(first, last, factor): generation requests of these numbers (from 1) take so many times as long."""
    cold_sizes: float = 1.0
    """How many times as long the first request at each size of the batch takes: something is compiled for that size."""
    stalls: tuple[tuple[float, float], ...] = ()
    """(begin, end) since the start, in order: what would be sent within is sent at the end."""
    seed: int = 0

    shortest: float = 1.0
    """Outputs end by themselves between this share of `max_tokens` and all of it, depending on the prompt."""
    differs_at: int | None = None
    """Position of an output token that differs from what other fakes answer."""
    gap: float = 1.0
    """Log-probability gap between the two best tokens that it reports when asked for logprobs."""

    remembers: float = 0.0
    """Share of prompts whose drafts are all accepted once it has answered them (as a global suffix tree would do)."""
    prefix_caching: bool = False
    """Whether beginnings of prompts (blocks of 16 tokens, per cache salt) are computed only once."""
    kv_tokens: int = 100_000
    """Tokens that the KV cache holds (for its gauge)."""

    foreign_running: int = 0
    """Requests of others that are always in the batch."""
    foreign_tokens_per_s: float = 0.0
    """Output tokens of others in the counters."""

    reports_tokens: bool = True
    """Whether it knows `return_token_ids` and running usage."""
    per_request_metrics: bool = False
    """Whether the last chunk tells the acceptance of its request (vLLM from 0.29)."""
    refuses: tuple[str, ...] = ()
    """Request fields that get a 400."""
    fails: tuple[int, ...] = ()
    """Numbers (from 1) of generation requests that end in an error after half of their tokens."""
    start_s: float = 0.0
    """From being started to answering (in memory); "since the start" begins after it."""
    dies_after: int | None = None
    """Generation requests taken before the server and all its connections go, with whatever is in flight."""
    dies_at_s: float | None = None
    """The same at a time since the start."""
    model: str = "fake"
    max_model_len: int = 4096
    version: Mapping[str, Any] = field(default_factory=lambda: {"version": "fake-1"})

    def step_time(self, running: float) -> float:
        """Return the seconds of a step while so many requests of this client are served."""
        rows = (running + self.foreign_running) * (1 + self.k)
        return self.step_s + self.row_s * max(0.0, rows - self.knee)

    def rates_at(self, temperature: float = 0.0) -> tuple[float, ...]:
        """Return the chance, per position, that a draft is accepted up to there."""
        rates: Sequence[float] = self.rates
        if not rates:
            stood = [min(count, self.k) for count in self.accepted]
            rates = [sum(count > position for count in stood) / len(stood) for position in range(self.k)]
        kept = max(0.0, 1 - self.heat * temperature)
        return tuple(rate * kept**position for position, rate in enumerate(rates[: self.k], start=1))

    def tokens_per_step(self, temperature: float = 0.0) -> float:
        """Return the mean number of tokens of a step (the last one of an output may be cut short)."""
        return 1 + sum(self.rates_at(temperature))

    def tpot(self, running: float) -> float:
        """Return the seconds per output token while so many requests are served, without chance and drift."""
        return self.step_time(running) / self.tokens_per_step()

    def keeps(self, checksum: int) -> bool:
        """Return whether it remembers the answer to a prompt, which its CRC-32 decides."""
        return checksum / 2**32 < self.remembers

    def slowdown(self, since_start: float) -> float:
        """Return the factor on latencies so long after the start."""
        spell = math.prod(factor for begin, end, factor in self.spells if begin <= since_start < end)
        return (1 + self.drift_per_s * since_start) * spell

    def find_cold(self, number: int) -> float:
        """Return the factor on latencies of a request, going by its number."""
        return math.prod(factor for first, last, factor in self.cold if first <= number <= last)

    def after_stalls(self, since_start: float) -> float:
        """Return when something due at a time really happens."""
        for begin, end in self.stalls:
            if begin <= since_start < end:
                since_start = end
        return since_start


def find_crossover(plain: FakeScript, speculative: FakeScript) -> float:
    """Return the number of requests served from which greedy speculation decodes no faster; inf where it always does.

    Both step times are lines with a knee, so that the answer lies on one of four segments.
    """

    def gain(running: float) -> float:
        return plain.tpot(running) - speculative.tpot(running)

    knees = {max(0.0, each.knee / (1 + each.k) - each.foreign_running) for each in (plain, speculative)}
    marks = [0.0, *sorted(knees), 1e6]
    for low, high in pairwise(marks):
        if gain(low) <= 0:
            return low
        if gain(high) <= 0:
            return low + (high - low) * gain(low) / (gain(low) - gain(high))
    return math.inf
