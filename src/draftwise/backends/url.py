"""A server that somebody else runs, known by its URL; the other backends are this plus a way to start one."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from draftwise.backends.base import BrokenStream, Exchange, Piece, ServerInfo
from draftwise.backends.exposition import parse_counters, parse_gauges
from draftwise.backends.wire import Wire
from draftwise.core import BackendError, Counters, InvalidSetup, ServerLoad

__all__ = ["UrlBackend", "check_url"]


_SMALL_ANSWER_S = 30.0
"""In which a server tells its model or its counters, however busy it is."""


class UrlBackend:
    """Any OpenAI-compatible server.

    Args:
        name: of the arm, for messages.
        url: `http://host:port`; a trailing `/v1` is dropped.
        api_key: sent as a bearer token.
        command: the command that the operator says it was started with.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(self, name: str, url: str, *, api_key: str | None = None, command: str | None = None) -> None:
        check_url(url)
        self.name = name
        self.url = url.rstrip("/").removesuffix("/v1")
        self.command = command
        self.api_key = api_key
        self._client: httpx.AsyncClient | None = None
        self._wire: Wire | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        """An HTTP client whose base is the server, open while started."""
        assert self._client is not None, "the backend is not started"
        return self._client

    def now(self) -> float:
        """Return seconds on this machine's monotonic clock."""
        return time.perf_counter()

    def complaint(self) -> str:
        """Return what to look at when the connection broke."""
        return "Is the server still running?"

    async def start(self) -> None:
        """Return when the server has answered /v1/models."""
        self._open()
        await self.describe()

    async def stop(self) -> None:
        """Close the connections; the server goes on."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body and return the answer with the arrival of each of its pieces.

        Raises:
            BrokenStream: the connection could not be made or broke.
        """
        assert self._wire is not None, "the backend is not started"
        try:
            return await self._wire.post(path, body, received)
        except BrokenStream as error:
            raise BrokenStream(
                f"{self.name}: the connection to {self.url} broke ({error}). {self.complaint()}", error.partial
            ) from None

    async def counters(self) -> Counters:
        """Return the counters of /metrics, all zero where there is none."""
        response = await self._get("/metrics")
        return parse_counters(response.text) if response.is_success else Counters()

    async def gauges(self) -> ServerLoad:
        """Return how loaded the server is by its /metrics; all None where there is none."""
        response = await self._get("/metrics")
        return parse_gauges(response.text) if response.is_success else ServerLoad()

    async def rest(self) -> None:
        """Do nothing: somebody else runs the server."""

    async def wake(self) -> None:
        """Do nothing: it never rested."""

    async def describe(self) -> ServerInfo:
        """Return the served model and the /version answer."""
        models = await self._get_json("/v1/models")
        try:
            first = models["data"][0]
            model, max_model_len = first["id"], first.get("max_model_len")
        except (LookupError, TypeError, AttributeError):
            raise BackendError(
                f"{self.name}: {self.url}/v1/models lists no model. Is it an OpenAI-compatible server?"
            ) from None
        return ServerInfo(model=model, max_model_len=max_model_len, version=_object(await self._get("/version")) or {})

    def _open(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        # Proxies of the environment are for the internet; a measured server is reached directly.
        timeout = httpx.Timeout(600, connect=10)
        tls = httpx.create_ssl_context()
        tls.set_alpn_protocols(["http/1.1"])
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, transport=transport, verify=tls, trust_env=False
        )
        self._wire = Wire(self.url, headers=headers, now=self.now, tls=tls)

    async def _get(self, path: str) -> httpx.Response:
        try:
            return await self.client.get(path, timeout=httpx.Timeout(_SMALL_ANSWER_S, connect=10))
        except httpx.HTTPError as error:
            raise BackendError(
                f"{self.name}: {self.url}{path} does not answer ({type(error).__name__}). Is the server running there?"
            ) from None

    async def _get_json(self, path: str) -> dict[str, Any]:
        response = await self._get(path)
        if response.status_code in (401, 403):
            key = "refuses the API key" if self.api_key else "wants an API key"
            raise BackendError(f"{self.name}: {self.url} {key}. Name the variable that holds it with --api-key-env.")
        if (answer := _object(response)) is None:
            raise BackendError(
                f"{self.name}: {self.url}{path} answered {response.status_code} without a JSON object. "
                "Is it an OpenAI-compatible server?"
            )
        return answer


def check_url(url: str, *, where: str = "--url") -> None:
    """Refuse what cannot be the address of a server.

    Raises:
        InvalidSetup: it is not an http(s) URL.
    """
    if not _is_server(url):
        raise InvalidSetup.because(
            "not-a-url", f"{where} {url!r} is not an http(s) URL.", where=where, fix="Example: http://127.0.0.1:8000."
        )


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False


def _object(response: httpx.Response) -> dict[str, Any] | None:
    """Return the JSON object that a successful answer holds, None where it is or holds something else."""
    try:
        answer = response.json() if response.is_success else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
