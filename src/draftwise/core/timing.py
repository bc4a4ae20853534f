"""Raw clock readings of one request; every latency is a function of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

from draftwise.core.documents import json_form


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds on one monotonic clock, for one streamed request.

    `chunks` holds (time, number of tokens that arrived); speculation delivers several at once.
    """

    sent: float
    chunks: tuple[tuple[float, int], ...] = field(metadata=json_form(raw=True))
    finished: float
    intended: float | None = None
    """When an open loop intended to send it. Latencies count from then, so a late client cannot hide a slow server (no
    coordinated omission)."""

    @property
    def start(self) -> float:
        """Start of all latencies: the intended send time, else the actual one."""
        return self.sent if self.intended is None else self.intended

    @property
    def send_lag_s(self) -> float:
        """Seconds between the intended and the actual send time."""
        return self.sent - self.start

    @property
    def num_tokens(self) -> int:
        """Output tokens received."""
        return sum(map(itemgetter(1), self.chunks))

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: first chunk minus start. None if nothing arrived."""
        return self.chunks[0][0] - self.start if self.chunks else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency: end of the stream minus start."""
        return self.finished - self.start

    @property
    def tpot_s(self) -> float | None:
        """Time per output token as vLLM defines it: (last token - first token) / (tokens - 1).

        The first token is excluded. None below two tokens.
        """
        count = self.num_tokens
        return (self.chunks[-1][0] - self.chunks[0][0]) / (count - 1) if count > 1 else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies between successive chunks (a chunk of several tokens is one arrival)."""
        times = [time for time, _ in self.chunks]
        return tuple(b - a for a, b in pairwise(times))

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over end-to-end latency."""
        count = self.num_tokens
        return count / self.e2e_s if count and self.e2e_s > 0 else None
