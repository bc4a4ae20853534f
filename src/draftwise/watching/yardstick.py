"""Compares a service with its baseline, and finds misleading counters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from draftwise.core import Baseline, Finding, RollbackBasis, Window
from draftwise.knowledge.messages import note, text_of
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP

_MUCH = 0.1
"""Share of tokens, or of steps, above which a ratio is misleading."""
_FEW_DRAFTS, _FEW_REQUESTS = 200, 10
"""Minimum number of drafts, and of requests where they are counted; with fewer, a share of steps is chance."""


def find_misleading(window: Window, good: Window | None = None) -> Iterator[Finding]:
    """Yield notes on a pool's misleading ratios, and on what is not judged.

    Args:
        window: readings of the pool.
        good: readings at a known good time.
    """
    first, tokens, decoding = window.sums.first_tokens, window.output_tokens, window.tokens_per_decode_step
    per_step, pool = window.tokens_per_step, window.pool
    if first and tokens and first >= _MUCH * tokens and decoding and per_step:
        yield note("first-tokens-count", first=first, tokens=tokens, per_step=per_step, decoding=decoding, pool=pool)
    drafts, steps = window.counters.spec.num_drafts, window.sequence_steps
    decoded = None if steps is None else steps - (first or 0)
    usual = 1.0 if good is None or good.coverage is None else good.coverage
    finished = window.sums.finished
    told = drafts >= _FEW_DRAFTS and (finished is None or finished >= _FEW_REQUESTS)
    if decoded and told and drafts <= (1 - _MUCH) * usual * decoded:
        yield note(
            "drafts-on-some-steps",
            share=drafts / decoded,
            length=window.acceptance_length,
            per_step=per_step,
            pool=pool,
        )
    if window.burst is not None:
        yield note("bursts-not-judged", burst=window.burst, running=window.batch, pool=pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """Expectations for a deployed setup; empty without a baseline."""

    baseline: Baseline | None = None

    @property
    def break_even(self) -> float | None:
        """Tokens per step below which the measured gain is gone: the highest of all adopted cells."""
        return max(self.break_evens, default=None)

    @property
    def break_evens(self) -> tuple[float, ...]:
        """Tokens per step below which the measured gain is gone, for each adopted cell."""
        return tuple(self._values(RollbackBasis.BREAK_EVEN, TOKENS_PER_STEP.name))

    @property
    def crossover(self) -> float | None:
        """Requests in flight per server beyond which speculation does not pay: the smallest of all workloads."""
        return min(self._values(RollbackBasis.BAND_END, LOAD_SIGNALS["concurrency"].name), default=None)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per step in the run's deciding cell."""
        expected = None if self.baseline is None else self.baseline.expected
        return None if expected is None else expected.counters.tokens_per_step

    @property
    def heaviest(self) -> float | None:
        """Largest number of running requests for which the run measured steps; None without a curve."""
        points = () if self.baseline is None else self.baseline.curve_ms.get(self.baseline.arm, ())
        return points[-1][0] if points else None

    def step_s(self, batch: float | None, *, plain: bool = False) -> float | None:
        """Return the run's step time for a number of running requests, interpolated linearly.

        Args:
            batch: running requests of one engine. Below the run's smallest, the smallest counts.
            plain: use the side without speculation.

        Returns:
            Seconds; None without a curve or beyond its heaviest point.
        """
        baseline = self.baseline
        arm = "" if baseline is None else baseline.plain_arm if plain else baseline.arm
        points = () if baseline is None else baseline.curve_ms.get(arm, ())
        if batch is None or not points or batch > points[-1][0]:
            return None
        index = bisect_left([count for count, _ in points], batch)
        (x0, y0), (x1, y1) = points[max(index - 1, 0)], points[index]
        share = (batch - x0) / (x1 - x0) if x1 > x0 else 1.0
        return (y0 + share * (y1 - y0)) / 1000 if index else y1 / 1000

    def step_ratio(self, window: Window, *, plain: bool = False) -> float | None:
        """Return the ratio of a step's time to the run's at the same load; None if either is unknown."""
        expected = self.step_s(window.batch, plain=plain)
        return None if expected is None or window.step_s is None else window.step_s / expected

    def list_unanswered(self, *, has_plain: bool, has_probe: bool, has_earlier: bool = False) -> Iterator[str]:
        """Yield one sentence per open question, with the input that would answer it.

        Args:
            has_plain: whether a plain pool is watched, or none can be.
            has_probe: whether a probe is asked, or none can be.
            has_earlier: whether there is a window of a good time, or none can be recorded.
        """
        if self.baseline is None:
            yield "Cannot tell whether it pays, or compare it with a measurement. Pass --baseline FILE."
            if not has_plain:
                yield text_of("no-plain-server")
            return
        if self.break_even is None:
            why = f" ({self.baseline.why_no_limits})" if self.baseline.why_no_limits else ""
            yield text_of("no-break-even", why=why)
        if not self.baseline.curve_ms and not has_plain:
            yield ("Cannot tell whether steps have become slower. Pass --plain URL with a server without speculation.")
        if self.baseline.seen is None and not has_earlier:
            yield (
                "Cannot tell whether prompts and adapters have changed. Record a window with --record-baseline FILE."
            )
        if not self.baseline.probe and not has_probe:
            yield ("The baseline has no probe. While the service is healthy, record one with --record-baseline FILE.")
        elif not has_probe:
            yield "Cannot tell a change of the traffic from one of the engine. Watch the servers' URLs with --probe."

    def _values(self, basis: RollbackBasis, metric: str) -> Iterator[float]:
        rules = () if self.baseline is None else self.baseline.rollback
        return (rule.value for rule in rules if rule.basis is basis and rule.metric == metric)
