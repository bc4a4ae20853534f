"""The steps of a calibrated server on one kind of traffic."""

from __future__ import annotations

from functools import cache

from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.cost.machine import Step

__all__ = ["Server"]


class Server:
    """The steps of a calibrated server at one draft length, on one kind of traffic.

    Args:
        costs: what is known of its steps.
        setting: its name.
        k: most tokens that it drafts; 0 for the baseline.
        context: mean length of the sequences, in tokens.
        drafted: mean draft tokens a sequence; None for k.
    """

    def __init__(
        self, costs: CalibratedCosts, setting: str, k: int, *, context: float, drafted: float | None = None
    ) -> None:
        self._costs, self.setting, self.k, self._context, self._drafted = costs, setting, k, context, drafted
        self._seconds = cache(self._compute)

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """Return the seconds of a step."""
        return self._seconds(float(f"{sequences:.3g}"), prefill_tokens)

    def step(self, sequences: float) -> Step:
        """Return a step that only decodes."""
        return self._costs.step(self.setting, self.k, sequences=sequences, context=self._context, drafted=self._drafted)

    def _compute(self, sequences: float, prefill_tokens: float) -> float:
        step = self._costs.step(
            self.setting,
            self.k,
            sequences=sequences,
            context=self._context,
            drafted=self._drafted,
            prefill_tokens=prefill_tokens,
        )
        return self._costs.model.seconds(step)
