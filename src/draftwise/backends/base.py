"""The one protocol of everything that answers prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from draftwise.core import Counters

__all__ = ["Backend", "ServerInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What a running server says about itself."""

    model: str
    """The name to send in requests."""
    max_model_len: int | None = None
    version: Mapping[str, Any] = field(default_factory=dict)
    """Its /version answer: `version`, and whatever else it tells (device, dtype, resolved speculative config)."""


class Backend(Protocol):
    """An OpenAI-compatible server: start it, ask it, read its counters, stop it.

    Every method raises BackendError with what to do when the server does not do its part.
    """

    name: str
    url: str
    """Valid once started."""
    command: str | None
    """The shell command that serves the same, None when unknown."""

    async def start(self) -> None:
        """Return when the server is healthy."""

    async def stop(self) -> None:
        """Release everything `start` took; harmless when not started, and when called twice."""

    @property
    def client(self) -> httpx.AsyncClient:
        """An HTTP client whose base is the server, open while started."""

    def now(self) -> float:
        """Return seconds on the clock that this server's answers are timed with."""

    def complaint(self) -> str:
        """Return what to look at when the connection broke."""

    async def counters(self) -> Counters:
        """Return the counters of its /metrics, all zero where it has none."""

    async def describe(self) -> ServerInfo:
        """Return what the server says about itself."""
