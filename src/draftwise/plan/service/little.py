"""Throughput and latencies without a simulation: the number of requests in a server is rate times stay (Little)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Service", "Stepping", "Traffic", "serve_concurrency", "serve_rate"]

_MOST_ROUNDS = 200
_CLOSE_ENOUGH = 1e-4
_LEAST_LEFT = 0.02
"""Share of its time that a server must have left for decoding, or the rate is more than it can serve."""


class Stepping(Protocol):
    """The steps of one server at one draft length."""

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """Return the seconds of a step of so many sequences that decode and so many tokens of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests are like, in the mean."""

    prompt_tokens: float
    """Tokens of a prompt that are computed: without those that the prefix cache holds."""
    output_tokens: float

    def decode_steps(self, tokens_per_step: float) -> float:
        """Return the steps of an answer after its first token, which comes with the prompt."""
        return max(0.0, self.output_tokens - 1) / tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a server gives under one load, in the mean."""

    batch: float
    """Sequences that decode."""
    step_s: float
    """Of a step, those with prompts included."""
    tpot_s: float
    """Of an output token after the first."""
    ttft_s: float
    """To the first token, without waiting for others to finish."""
    tokens_per_s: float
    """Of all answers together."""


def serve_concurrency(server: Stepping, traffic: Traffic, tokens_per_step: float, concurrency: float) -> Service:
    """Return the service of a closed loop: so many requests in flight, the next one sent when one is answered.

    Every request computes its prompt once: in a mean step, a prompt's share goes along with the sequences that decode.
    """
    steps = traffic.decode_steps(tokens_per_step)
    alone_s = server.step_s(1.0, traffic.prompt_tokens) if traffic.prompt_tokens else server.step_s(1.0)
    batch = concurrency
    for _ in range(_MOST_ROUNDS):
        pure_s, prompt_s = _split(server, traffic, batch)
        # Each of the others' prompts that comes while an answer is decoded makes one of its steps longer.
        stay_s = steps * pure_s + max(0.0, batch - 1) * prompt_s
        first_s = pure_s + prompt_s if concurrency > 1 else alone_s
        found = concurrency * stay_s / (stay_s + first_s) if stay_s else concurrency
        if abs(found - batch) < _CLOSE_ENOUGH * concurrency:
            break
        batch = max(1.0, (batch + found) / 2) if concurrency > 1 else 1.0
        if concurrency <= 1:
            break
    total_s = stay_s + first_s
    return Service(
        batch=batch,
        step_s=stay_s / steps if steps else pure_s,
        tpot_s=stay_s / max(1.0, traffic.output_tokens - 1),
        ttft_s=first_s,
        tokens_per_s=concurrency * traffic.output_tokens / total_s,
    )


def serve_rate(
    server: Stepping, traffic: Traffic, tokens_per_step: float, rate_per_s: float, *, most: float
) -> Service | None:
    """Return the service of requests that arrive at a rate; None where the server cannot keep up with it.

    Args:
        server: its steps.
        traffic: what requests are like.
        tokens_per_step: that a step gives a sequence.
        rate_per_s: requests a second.
        most: sequences that it decodes at once.
    """
    steps, batch = traffic.decode_steps(tokens_per_step), 1.0
    for _ in range(_MOST_ROUNDS):
        pure_s, prompt_s = _split(server, traffic, max(1.0, batch))
        left = 1 - rate_per_s * prompt_s
        if left < _LEAST_LEFT:
            return None
        step_s = pure_s / left
        found = rate_per_s * steps * step_s
        if found > most:
            return None
        if abs(found - batch) < _CLOSE_ENOUGH * max(1.0, batch):
            break
        batch += 0.5 * (found - batch)
    stay_s, first_s = steps * step_s, pure_s / left + prompt_s
    return Service(
        batch=batch,
        step_s=step_s,
        tpot_s=stay_s / max(1.0, traffic.output_tokens - 1),
        ttft_s=first_s,
        tokens_per_s=rate_per_s * traffic.output_tokens,
    )


def _split(server: Stepping, traffic: Traffic, batch: float) -> tuple[float, float]:
    """Return the seconds of a step that only decodes, and those that a prompt adds to one."""
    pure_s = server.step_s(batch)
    return pure_s, max(0.0, server.step_s(batch, traffic.prompt_tokens) - pure_s) if traffic.prompt_tokens else 0.0
