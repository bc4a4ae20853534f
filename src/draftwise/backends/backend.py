"""The one protocol of everything that answers prompts, and the values that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from draftwise.core import Answer, BackendError, Counters, Divergence, ServerLoad

if TYPE_CHECKING:
    import httpx

Piece = tuple[float, bytes]
"""Bytes of an answer's body and when they arrived, on the backend's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a running server says about itself."""

    model: str
    """The name to send in requests."""
    max_model_len: int | None = None
    version: Mapping[str, Any] = field(default_factory=dict)
    """What it is, the same after every start: its /version answer (`version`, and whatever else it tells: device,
    dtype) and, where it is known, the `speculative_config` as it resolved."""
    started: Mapping[str, Any] = field(default_factory=dict)
    """How this start went: seconds of its phases, memory, KV tokens. Differs from start to start."""
    hardware: str | None = None
    """The server's machine, if it reports it."""
    metric_names: str | None = None
    """Engine whose names its /metrics uses; None where its counters cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its streamed answer as it came off the wire; times are `Backend.now` seconds."""

    status: int
    """HTTP status; 0 if not even the head arrived."""
    sent: float
    received: tuple[Piece, ...]
    """The body without its transfer coding."""
    finished: float
    retry_after: str = ""
    """What the head says of when to come back; empty where it does not."""
    refusals: int = 0
    """How often the server had refused it for want of time, before it was sent again."""


class BrokenStream(BackendError):  # noqa: N818  (as InvalidSetup: what happened, not that it is an error)
    """The connection broke before the answer had ended; `partial` is what came, None when nothing was sent."""

    def __init__(self, message: str, partial: Exchange | None = None) -> None:
        super().__init__(message)
        self.partial = partial


class Backend(Protocol):
    """An OpenAI-compatible server: start it, ask it, read its counters, stop it.

    Every method raises BackendError with what to do when the server does not do its part.
    """

    name: str
    command: str | None
    """The shell command that serves the same, None when unknown."""

    @property
    def url(self) -> str:
        """Valid once started."""

    async def start(self) -> None:
        """Return when the server is healthy."""

    async def stop(self) -> None:
        """Release everything `start` took; harmless when not started, and when called twice."""

    @property
    def client(self) -> httpx.AsyncClient:
        """An HTTP client whose base is the server, open while started."""

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body and return the answer with the arrival of each of its pieces.

        Cancelling closes the connection, which makes the server give the request up. The pieces are also appended
        to `received` as they arrive: what came of a canceled answer is there.

        Raises:
            BrokenStream: the connection could not be made or broke.
        """

    def now(self) -> float:
        """Return seconds on the clock that this server's answers are timed with."""

    def complaint(self) -> str:
        """Return what to look at when the connection broke."""

    async def counters(self) -> Counters:
        """Return the counters of its /metrics, all zero where it never had any."""

    async def gauges(self) -> ServerLoad:
        """Return how loaded the server is, by its /metrics; None for what it does not report."""

    async def look(self) -> tuple[ServerLoad, Counters]:
        """Return gauges and counters of one and the same /metrics."""

    async def describe(self) -> ServerInfo:
        """Return what the server says about itself."""

    async def rest(self) -> None:
        """Take as little of the machine as possible until `wake`: another server's turn begins.

        Nothing may be in flight, and nothing may be asked, meanwhile.
        """

    async def wake(self) -> None:
        """End `rest`; harmless when awake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProbe:
    """One server."""

    info: ServerInfo
    answers: tuple[Answer, ...]
    """Greedy answers, asked one at a time."""
    growth: Counters
    """Growth of the server's counters over the answers, including other clients' requests."""
    counts_drafts: bool
    """Whether its /metrics has counters of drafts: vLLM's has exactly when it was started to speculate."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answers."""
        return sum(answer.timing.num_tokens for answer in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPair:
    """A server, and the plain one that it is held against."""

    server: ServerProbe
    plain: ServerProbe | None = None
    divergences: tuple[Divergence, ...] = ()
    """What both say of each position at which their answers part."""
