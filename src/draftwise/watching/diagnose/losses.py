"""What a service loses, and to what: the time per token now over the expected one, as a product of three parts."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from draftwise.core import Window
from draftwise.watching.diagnose.case import Case

__all__ = ["Losses", "find_losses", "find_request_loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Logarithms whose sum is that of seconds per token now over expected; None where a reading is missing."""

    machine: float | None
    """Step time over the curve at this batch: machine, graphs, configuration."""
    load: float | None
    """The curve at this batch over the curve at the expected one."""
    acceptance: float | None
    """Expected tokens per step over those now: coverage, draft length, acceptance by position."""


def find_losses(case: Case) -> Losses:
    """Return the parts for a pool."""
    yardstick, good, window = case.expected.yardstick, case.good, case.window
    expected = None if good is None else good.tokens_per_step
    then = None if good is None else yardstick.step_s(good.batch)
    return Losses(
        machine=_log_ratio(window.step_s, yardstick.step_s(window.batch)),
        load=_log_ratio(yardstick.step_s(window.batch), then),
        acceptance=_log_ratio(expected, window.tokens_per_step),
    )


def find_request_loss(window: Window, excess_s: float | None) -> float | None:
    """Return what seconds in excess, over all finished requests, cost of the time that these took."""
    parts = (window.sums.queue_s, window.sums.prefill_s, window.sums.decode_s)
    total = sum(part for part in parts if part is not None)
    if excess_s is None or None in parts or not 0 <= excess_s < total:
        return None
    return -log(1 - excess_s / total)


def _log_ratio(a: float | None, b: float | None) -> float | None:
    return log(a / b) if a and b else None
