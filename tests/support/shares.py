"""Whether a proxy shares requests as it was told."""

from __future__ import annotations

from math import sqrt

__all__ = ["is_drawn_share", "is_share"]

_SURE = 4.0
"""Standard deviations that chance does not make of a few hundred requests."""


def is_share(given: int, total: int, *, percent: float) -> bool:
    """Return whether a pool got its share of requests that go around by weight: one more or less, and no other."""
    return abs(given - total * percent / 100) <= 1


def is_drawn_share(given: int, total: int, *, percent: float) -> bool:
    """Return whether a pool got its share of requests that are drawn by weight, as far as chance lets that be told."""
    share = percent / 100
    return abs(given - total * share) <= _SURE * sqrt(total * share * (1 - share))
