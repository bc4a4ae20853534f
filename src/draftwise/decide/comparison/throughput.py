"""Output tokens per second of a whole server while the load on it was whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.core import Answer

__all__ = ["ServerOutput", "measure_output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOutput:
    """What a server put out in a stretch of time."""

    tokens: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def measure_output(turn: Sequence[Answer]) -> ServerOutput | None:
    """Return what a server put out in a turn while the load was whole.

    The load is whole from when the first measured request is sent to the end of the last one: the unmeasured
    requests before and after keep it so, and their tokens within that time count, for the server made them too.
    None for a turn without a measured request, or one that took no time.
    """
    measured = [answer.timing for answer in turn if answer.measured]
    if not measured:
        return None
    begin, end = min(timing.sent for timing in measured), max(timing.finished for timing in measured)
    if end <= begin:
        return None
    tokens = sum(count for answer in turn for time, count in answer.timing.chunks if begin < time <= end)
    return ServerOutput(tokens=tokens, seconds=end - begin)
