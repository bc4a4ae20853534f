"""What a running server was seen to be, and what it answered to a few prompts."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.backends.base import ServerInfo
from draftwise.core import Answer, Counters, Divergence

__all__ = ["Probed", "ProbedPair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One server."""

    info: ServerInfo
    answers: tuple[Answer, ...]
    """At temperature 0, one request at a time."""
    growth: Counters
    """Of its counters over the answers, those of other clients' requests included."""
    counts_drafts: bool
    """Whether its /metrics has counters of drafts: vLLM's has exactly when it was started to speculate."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answers."""
        return sum(answer.timing.num_tokens for answer in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPair:
    """A server, and the plain one that it is held against."""

    server: Probed
    plain: Probed | None = None
    divergences: tuple[Divergence, ...] = ()
    """What both say of each position at which their answers part."""
