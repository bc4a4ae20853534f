"""What the windows of one replica say together: whether its tokens per step are below a value, beyond their noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from draftwise.core import Window

__all__ = ["Evidence", "Sample", "keep_recent", "pool", "read_sample"]

_SPREAD_OF_REQUESTS = 0.38
"""Coefficient of variation of one request's tokens per step: 12 % of a window of ten requests (simulated services)."""
_SPREAD_OF_STEPS = 0.6
"""The same of one step of a request: it emits one token or k + 1."""
_Z = 2.0
"""Standard errors that a mean has to lie off a value: 2 % of the cases by chance."""
_MIN_DRAFTS = 200
"""With so many drafts, none accepted is no chance."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The part of a window that decides."""

    start_s: float
    end_s: float
    tokens: int
    accepted: int
    drafts: int
    finished: float
    """Requests that ended."""
    running: float
    """Requests that were running, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Samples of one replica together."""

    span_s: float
    num_windows: int
    tokens_per_step: float
    error: float
    """Two standard errors of `tokens_per_step`, as a share of it."""
    requests: float
    accepts_nothing: bool

    def is_below(self, value: float) -> bool:
        """Return whether tokens per step are below a value beyond their noise."""
        return self.tokens_per_step * (1 + self.error) < value

    def is_above(self, value: float) -> bool:
        """Return whether tokens per step are above a value beyond their noise."""
        return self.tokens_per_step * (1 - self.error) > value


def read_sample(window: Window) -> Sample | None:
    """Return what counts of a window; None where it says nothing of speculation: idle, restarted, without counters."""
    tokens, steps = window.output_tokens, window.sequence_steps
    if window.restarted or not tokens or not steps:
        return None
    return Sample(
        start_s=window.start_s,
        end_s=window.start_s + window.duration_s,
        tokens=tokens,
        accepted=window.counters.spec.num_accepted_tokens,
        drafts=window.counters.spec.num_drafts,
        finished=window.sums.finished or 0.0,
        running=window.load.running or 0.0,
    )


def keep_recent(samples: Sequence[Sample], now_s: float, span_s: float) -> tuple[Sample, ...]:
    """Return the samples that began within the last `span_s` seconds."""
    return tuple(each for each in samples if each.start_s >= now_s - span_s)


def pool(samples: Sequence[Sample]) -> Evidence | None:
    """Return what samples say together; None without any.

    A request that runs through several windows counts once; where nothing tells how many there were, it was one.
    """
    if not samples:
        return None
    tokens, accepted = sum(each.tokens for each in samples), sum(each.accepted for each in samples)
    drafts = sum(each.drafts for each in samples)
    requests = sum(each.finished for each in samples) + max(each.running for each in samples)
    return Evidence(
        span_s=samples[-1].end_s - samples[0].start_s,
        num_windows=len(samples),
        tokens_per_step=tokens / (tokens - accepted),
        error=_Z * sqrt(_SPREAD_OF_REQUESTS**2 / max(requests, 1.0) + _SPREAD_OF_STEPS**2 / (tokens - accepted)),
        requests=requests,
        accepts_nothing=drafts >= _MIN_DRAFTS and accepted == 0,
    )
