"""A running server known by its URL. Other backends extend it with a way to start one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from draftwise.backends.address import check_url
from draftwise.backends.backend import BrokenStream, Exchange, Piece, ServerInfo
from draftwise.backends.exposition import (
    find_engine,
    has_spec_counters,
    parse_counters,
    parse_gauges,
    parse_load_and_counters,
    parse_start,
)
from draftwise.backends.patience import BUSY, Patience
from draftwise.backends.wire import Wire
from draftwise.core import BackendError, Counters, ServerLoad
from draftwise.knowledge.messages import text_of
from draftwise.machine.network import open_tls

_KEPT_S = 1.0
"""Lifetime of an idle connection in seconds: shorter than servers keep one (uvicorn 5 s, others 2 s)."""
_GET_PATIENCE_S = 5.0
"""Total seconds of pauses before retries of small requests, if a connection breaks or a busy server gives no
Retry-After."""
_UNAVAILABLE = 503
_SMALL_ANSWER_S = 30.0
"""Maximum seconds for a server to report its model or counters, even if busy."""


class UrlBackend:
    """Any OpenAI-compatible server.

    Args:
        url: `http://host:port`; a trailing `/v1` is dropped.
        headers: sent with every request, such as a bearer token; to `metrics_url` only if it has the same origin.
        metrics_url: metrics page, if it is not /metrics below `url`.
        metrics_headers: additional headers for that page.
        command: the server's start command, as given by the operator.
        proxy: `http://[user:password@]host:port`. Default: a direct connection, which load tests need.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        metrics_url: str | None = None,
        metrics_headers: Mapping[str, str] | None = None,
        command: str | None = None,
        proxy: str | None = None,
    ) -> None:
        check_url(url)
        self.name = name
        self.url = url.rstrip("/").removesuffix("/v1")
        self.command, self._proxy = command, proxy
        self.headers = dict(headers or {})
        self._metrics_url = metrics_url
        trusted = metrics_url is None or _origin(metrics_url) == _origin(url)
        self._metrics_headers = (self.headers if trusted else {}) | dict(metrics_headers or {})
        self._had_metrics = False
        self._client: httpx.AsyncClient | None = None
        self._wire: Wire | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        """HTTP client with the server as base URL; open while started."""
        assert self._client is not None, "the backend is not started"
        return self._client

    def now(self) -> float:
        """Return seconds on this machine's monotonic clock."""
        return time.perf_counter()

    def least_start_s(self) -> float:
        """Return 0: draftwise does not start it."""
        return 0.0

    def complaint(self) -> str:
        """Return a hint on where to look if the connection broke."""
        return "Is the server still running?"

    async def start(self) -> None:
        """Wait until the server has answered /v1/models, and its metrics page if one is named."""
        await self.stop()
        self._open()
        await self.describe()

    async def stop(self) -> None:
        """Close the connections. The server keeps running."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._had_metrics = False

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body; return the answer with the arrival time of each piece.

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
        """Return the counters of /metrics; all zero if it never had any."""
        return parse_counters(await self._scrape())

    async def gauges(self) -> ServerLoad:
        """Return the server's load from its /metrics; all None if it never had any."""
        return parse_gauges(await self._scrape())

    async def look(self) -> tuple[ServerLoad, Counters]:
        """Return gauges and counters from a single reading of /metrics."""
        return parse_load_and_counters(await self._scrape())

    async def find_life(self) -> tuple[float | None, int | None]:
        """Return from /metrics when its process started (seconds since the epoch) and the tokens generated since."""
        text = await self._scrape()
        return parse_start(text), parse_counters(text).generation_tokens

    async def has_draft_counters(self) -> bool:
        """Return whether its /metrics has draft counters, as vLLM's has exactly if it speculates."""
        return has_spec_counters(await self._scrape())

    async def rest(self) -> None:
        """Do nothing: draftwise does not run the server."""

    async def wake(self) -> None:
        """Do nothing: the server never rests."""

    async def describe(self) -> ServerInfo:
        """Return the served model, the /version answer and, for vLLM in development mode, its config and hardware."""
        models = await self._get_json("/v1/models")
        try:
            first = models["data"][0]
            model, length = first["id"], first.get("max_model_len")
        except (LookupError, TypeError, AttributeError):
            raise BackendError(
                f"{self.name}: {self.url}/v1/models lists no model. Is it an OpenAI-compatible server?"
            ) from None
        version = _object(await self._get("/version")) or {}
        about = _object(await self._get("/server_info?config_format=json")) or {}
        if (config := _find_speculative_config(about)) is not None:
            version["speculative_config"] = config
        return ServerInfo(
            model=model,
            max_model_len=length if type(length) is int and length > 0 else None,
            version=version,
            hardware=_find_hardware(about),
            metric_names=find_engine(await self._scrape()),
        )

    async def _scrape(self) -> str:
        """Return the text of /metrics, empty where there never was one.

        Raises:
            BackendError: there was one before: zeros now would count backwards. Or the operator names the page, and no
                counters are there.
        """
        response = await self._get(self._metrics_url or "/metrics", self._metrics_headers)
        text = response.text if response.is_success else ""
        found = find_engine(text) is not None
        if not found and (self._had_metrics or self._metrics_url):
            raise BackendError(
                f"{self.name}: {self._metrics_url or f'{self.url}/metrics'} answered {response.status_code} without "
                "counters of a known server. Give the page that Prometheus scrapes (--metrics-url)."
            )
        self._had_metrics |= found
        return text

    def _open(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        timeout = httpx.Timeout(600, connect=10)
        tls = open_tls()
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers,
            timeout=timeout,
            transport=transport,
            verify=tls,
            trust_env=False,
            proxy=self._proxy,
            limits=httpx.Limits(keepalive_expiry=_KEPT_S),
        )
        self._wire = Wire(self.url, headers=self.headers, now=self.now, tls=tls, proxy=self._proxy)

    async def _get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the answer of a path below the server's URL, or of another URL.

        Args:
            headers: sent instead of the server's own.
        """
        request = self.client.build_request("GET", path, timeout=httpx.Timeout(_SMALL_ANSWER_S, connect=10))
        if headers is not None and headers != self.headers:
            for name in self.headers:
                request.headers.pop(name, None)
            request.headers.update({"Host": request.url.netloc.decode(), **headers})
        patience, asked_to_wait = Patience(_GET_PATIENCE_S), Patience()
        while True:
            told, failure, response = "", None, None
            try:
                response = await self.client.send(request)
            except httpx.HTTPError as error:
                failure = error
            if response is not None:
                told = response.headers.get("retry-after", "")
                # (A gateway that never shows a page may answer 503 each time.)
                if response.status_code not in BUSY or (response.status_code == _UNAVAILABLE and not told):
                    return response
            if (
                isinstance(failure, httpx.ConnectError)
                or (pause_s := (asked_to_wait if told else patience).pause_s(told)) is None
            ):
                break
            await asyncio.sleep(pause_s)
        if response is not None:
            return response
        raise BackendError(
            f"{self.name}: {request.url} does not answer ({type(failure).__name__}). Is the server running there?"
        )

    async def _get_json(self, path: str) -> dict[str, Any]:
        response = await self._get(path)
        if response.status_code in (401, 403):
            has_key = any(name.lower() == "authorization" for name in self.headers)
            key = "refuses the API key" if has_key else "wants an API key"
            raise BackendError(text_of("key-refused", name=self.name, url=self.url, key=key))
        if (answer := _object(response)) is None:
            raise BackendError(
                f"{self.name}: {self.url}{path} answered {response.status_code} without a JSON object. "
                "Is it an OpenAI-compatible server?"
            )
        return answer


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _find_speculative_config(about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the speculative config that vLLM's /server_info tells, empty without speculation.

    It is served with VLLM_SERVER_DEV_MODE=1 only; releases before 0.12 answer with text.
    """
    config = about.get("vllm_config")
    if not isinstance(config, dict) or "speculative_config" not in config:
        return None
    # Nested are the configs of the two models, which are not the operator's to give.
    given = (config["speculative_config"] or {}).items()
    return {key: value for key, value in given if value is not None and not isinstance(value, dict)}


def _find_hardware(about: Mapping[str, Any]) -> str | None:
    """Return the GPUs that vLLM's /server_info tells (`system_env`, as `vllm collect-env` prints it)."""
    system = about.get("system_env")
    gpus = system.get("nvidia_gpu_models") if isinstance(system, dict) else None
    return "; ".join(filter(None, map(str.strip, gpus.splitlines()))) or None if isinstance(gpus, str) else None


def _object(response: httpx.Response) -> dict[str, Any] | None:
    """Return the JSON object that a successful answer holds, None where it is or holds something else."""
    try:
        answer = response.json() if response.is_success else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
