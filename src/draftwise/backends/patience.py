"""Decides how long to wait before retrying a busy server: as it requests, else twice as long each time."""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import parsedate_to_datetime

BUSY = (429, 503)
"""HTTP statuses of an overloaded server: the request may be retried (RFC 9110, RFC 6585)."""
_FIRST_S, _LONGEST_S = 0.25, 8.0
_PATIENCE_S = 60.0


class Patience:
    """The pauses before retries of one request.

    Args:
        seconds: total seconds for all pauses.
    """

    def __init__(self, seconds: float = _PATIENCE_S) -> None:
        self._left_s, self._next_s = seconds, _FIRST_S

    def pause_s(self, retry_after: str = "") -> float | None:
        """Return the seconds to wait before the next attempt; None: give up."""
        told_s = read_retry_after(retry_after)
        pause_s = self._next_s if told_s is None else max(told_s, _FIRST_S)
        self._next_s = min(_LONGEST_S, 2 * self._next_s)
        if pause_s > self._left_s:
            return None
        self._left_s -= pause_s
        return pause_s


def read_retry_after(text: str) -> float | None:
    """Return the seconds in a Retry-After header, given as seconds or a date; None for anything else."""
    with suppress(ValueError):
        seconds = float(text)
        return seconds if 0 <= seconds < float("inf") else None
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None
