"""Defines the protocol of servers that answer prompts, and its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from draftwise.core import BackendError, Counters, ServerLoad

if TYPE_CHECKING:
    import httpx

    from draftwise.core import Answer, Divergence

Piece = tuple[float, bytes]
"""(arrival time on the backend's clock, bytes) of a piece of an answer's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a running server reports about itself."""

    model: str
    """Model name to send in requests."""
    max_model_len: int | None = None
    version: Mapping[str, Any] = field(default_factory=dict)
    """Properties that are the same after every start: its /version answer (`version`, and others such as device and
    dtype) and, if known, the resolved `speculative_config`."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """Properties of this start: seconds of its phases, memory, KV tokens."""
    hardware: str | None = None
    """The server's machine, if it reports it."""
    metric_names: str | None = None
    """Engine whose metric names it uses; None if its counters cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its raw streamed answer. Times are seconds of `Backend.now`."""

    status: int
    """HTTP status; 0 if the headers did not arrive."""
    sent: float
    received: tuple[Piece, ...]
    """The body, without transfer encoding."""
    finished: float
    retry_after: str = ""
    """The Retry-After header; empty without one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that tell of a cache, by lower-case name."""
    refusals: int = 0
    """How often a busy server rejected the request before this attempt."""


class BrokenStream(BackendError):  # noqa: N818  (as InvalidSetup: what happened, not that it is an error)
    """The connection broke before the answer ended. `partial` is what arrived; None if nothing was sent."""

    def __init__(self, message: str, partial: Exchange | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class Backend(Protocol):
    """An OpenAI-compatible server: start it, send requests, read its counters, stop it.

    Every method raises BackendError, with advice, if the server fails.
    """

    name: str
    command: str | None
    """Shell command that serves the same; None if unknown."""

    @property
    def url(self) -> str:
        """Base URL; valid once started."""

    async def start(self) -> None:
        """Start the server; return once it is healthy."""

    async def stop(self) -> None:
        """Release everything that `start` acquired. Safe to call before `start`, and twice."""

    @property
    def client(self) -> httpx.AsyncClient:
        """HTTP client with the server as base URL; open while started."""

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body; return the answer with the arrival time of each piece.

        Canceling closes the connection, which makes the server abort the request. Pieces are also appended to
        `received` as they arrive, so a canceled answer's beginning is available.

        Raises:
            BrokenStream: the connection could not be made or broke.
        """

    def now(self) -> float:
        """Return the time in seconds, on the clock of this server's answers."""

    def complaint(self) -> str:
        """Return a hint on where to look if the connection broke."""

    def least_start_s(self) -> float:
        """Return a lower bound on the seconds of its start, from its share of the cores so far; 0 if unknown."""

    async def counters(self) -> Counters:
        """Return the counters of its /metrics; all zero if it never had any."""

    async def gauges(self) -> ServerLoad:
        """Return the server's load from its /metrics; None for values not reported."""

    async def look(self) -> tuple[ServerLoad, Counters]:
        """Return gauges and counters from a single reading of /metrics."""

    async def describe(self) -> ServerInfo:
        """Return what the server reports about itself."""

    async def rest(self) -> None:
        """Use as little of the machine as possible until `wake`, while another server is measured.

        No request may be in flight or sent meanwhile.
        """

    async def wake(self) -> None:
        """End `rest`. Safe to call when awake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProbe:
    """Probe results of one server."""

    info: ServerInfo
    answers: tuple[Answer, ...]
    """Greedy answers, requested one at a time."""
    growth: Counters
    """Growth of the server's counters during the probe, including other clients' requests."""
    counts_drafts: bool
    """Whether its /metrics has draft counters, as vLLM's has exactly if it speculates."""

    @property
    def num_tokens(self) -> int:
        """Total tokens of the answers."""
        return sum(answer.timing.num_tokens for answer in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPair:
    """A server, and the plain one that it is compared with."""

    server: ServerProbe
    plain: ServerProbe | None = None
    divergences: tuple[Divergence, ...] = ()
    """Both servers' views of each position where their answers diverge."""
