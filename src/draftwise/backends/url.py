"""A server that somebody else runs, known by its URL; the other backends are this plus a way to start one."""

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
from draftwise.machine.network import open_tls

_KEPT_S = 1.0
"""Life of an idle connection: shorter than that of servers (uvicorn 5 s, others 2)."""
_GET_PATIENCE_S = 5.0
"""Pauses together before small answers are asked for again, when a connection breaks, or a server has no time and does
not say when to come back."""
_UNAVAILABLE = 503
_SMALL_ANSWER_S = 30.0
"""Time limit for a server to report its model or counters, even if busy."""


class UrlBackend:
    """Any OpenAI-compatible server.

    Args:
        url: `http://host:port`; a trailing `/v1` is dropped.
        headers: sent with every request, e.g. a bearer token; to `metrics_url` only if it is of the same origin.
        metrics_url: page of its counters, where it is not /metrics below `url`.
        metrics_headers: sent to that page in addition to them.
        command: the command that the operator says it was started with.
        proxy: `http://[user:password@]host:port`; by default the server is reached directly, as load has to be.

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
        """Return when the server has answered /v1/models, and its page of counters where one is named."""
        await self.stop()
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
        self._had_metrics = False

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
        """Return the counters of /metrics, all zero where there never were any."""
        return parse_counters(await self._scrape())

    async def gauges(self) -> ServerLoad:
        """Return how loaded the server is by its /metrics; all None where there never were any."""
        return parse_gauges(await self._scrape())

    async def look(self) -> tuple[ServerLoad, Counters]:
        """Return gauges and counters of one and the same /metrics."""
        return parse_load_and_counters(await self._scrape())

    async def find_life(self) -> tuple[float | None, int | None]:
        """Return when its process started (seconds since the epoch) and its generated tokens since, by its /metrics."""
        text = await self._scrape()
        return parse_start(text), parse_counters(text).generation_tokens

    async def has_draft_counters(self) -> bool:
        """Return whether its /metrics counts drafts: vLLM's does exactly when it was started to speculate."""
        return has_spec_counters(await self._scrape())

    async def rest(self) -> None:
        """Do nothing: somebody else runs the server."""

    async def wake(self) -> None:
        """Do nothing: it never rested."""

    async def describe(self) -> ServerInfo:
        """Return the served model, the /version answer and, of vLLM in development mode, its config and hardware."""
        models = await self._get_json("/v1/models")
        try:
            first = models["data"][0]
            model, max_model_len = first["id"], first.get("max_model_len")
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
            max_model_len=max_model_len,
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
            raise BackendError(
                f"{self.name}: {self.url} {key}. Name the variable that holds it with --api-key-env, "
                "and give other headers that a gateway wants with --header 'Name: ${VARIABLE}'."
            )
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
