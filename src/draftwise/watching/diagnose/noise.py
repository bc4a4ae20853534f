"""How far a window's readings lie from the truth without a cause: what a rule takes for a change goes beyond that.

Drafts of one request are accepted alike, so that requests are counted and not drafts. The figures are those of windows
of simulated services, whose requests differ as published profiles and the bundled prompts do: the acceptance length
varies by 12 % at 10 requests a window, by 5.8 % at 50 and by 3.9 % at 300.
"""

from __future__ import annotations

from math import hypot, inf, log, sqrt

from draftwise.core import Window

__all__ = [
    "MIN_DRAFTS",
    "MIN_REQUESTS",
    "MIN_TOKENS",
    "SIGMAS",
    "count_requests",
    "draft_error",
    "is_less",
    "relative_error",
    "sampling_error",
]

MIN_TOKENS = 200
"""Output tokens with which a server is said to generate."""
MIN_DRAFTS = 200
"""Drafts from which none, or nearly none, accepted is no accident."""
MIN_REQUESTS = 5
"""Finished requests from which their times say something."""
SIGMAS = 3.5
"""Standard errors that a change is beyond: some twenty rules look at every window."""
_REQUEST_SPREAD = 0.4
"""Standard deviation of a ratio over requests, in logarithms."""
_WINDOW_SPREAD = 0.02
"""What is left of it however many requests there are."""
_DRAFTS_A_REQUEST = 180
"""Of a request of 350 tokens, where a server does not count its requests."""


def count_requests(window: Window) -> float:
    """Return how many requests a window says something of: those that ended, and those under way."""
    if window.sums.finished is not None:
        return window.sums.finished + (window.load.running or 0.0)
    return window.counters.spec.num_drafts / _DRAFTS_A_REQUEST


def sampling_error(*windows: Window) -> float:
    """Return the standard error of the logarithm of a reading, or of a ratio of two, by the requests in the windows."""
    requests = [count_requests(window) for window in windows]
    return sqrt(sum(_REQUEST_SPREAD**2 / each for each in requests)) if all(requests) else inf


def relative_error(*windows: Window) -> float:
    """Return the same for a reading that is held against another time's, whose traffic was never quite the same."""
    return hypot(_WINDOW_SPREAD, sampling_error(*windows))


def draft_error(*windows: Window) -> float:
    """Return the same for the accepted tokens of a draft: 1 less than the acceptance length, they vary as much by more.

    The first window's acceptance gives the factor.
    """
    length = windows[0].acceptance_length
    return inf if length is None or length <= 1 else relative_error(*windows) * length / (length - 1)


def is_less(now: float | None, then: float | None, *, by: float, error: float) -> bool:
    """Return whether a reading fell by a share and by more than the noise; not so where one is unknown.

    Args:
        now: the reading.
        then: what it is held against.
        by: smallest share that matters.
        error: standard error of the logarithm of their ratio.
    """
    if now is None or not then:
        return False
    return now <= 0 or log(then / now) > max(-log(1 - by), SIGMAS * error)
