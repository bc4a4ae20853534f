"""Reads the pages of counters of all watched servers at once: one kept connection each, and a time limit for all."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from draftwise.backends.address import check_url
from draftwise.backends.backend import BrokenStream
from draftwise.backends.wire import Wire
from draftwise.core import BackendError
from draftwise.watching.look import Look, read_page

__all__ = ["HttpPage", "Page", "name_server", "open_pages", "read_all"]

_METRICS = "/metrics"
_TIMEOUT_S = 5.0
"""For a whole page: a server that takes longer tells nothing about now."""


class Page(Protocol):
    """Where one server's counters are read."""

    @property
    def pool(self) -> str:
        """Name of the pool that the server belongs to."""

    @property
    def instance(self) -> str:
        """What the server is called."""

    async def look(self) -> Look:
        """Return what the page says now.

        Raises:
            BackendError: it cannot be read, or is of no known server.
        """

    def close(self) -> None:
        """Release what it holds."""


class HttpPage:
    """A server's /metrics.

    Args:
        pool: of the server.
        url: the server's, with or without `/v1`; or of the page itself, which ends in `/metrics`.
        headers: sent with every request.
        tls: for https.
        timeout_s: for the whole page.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(
        self,
        pool: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        check_url(url, where="URL")
        self.pool = pool
        self.instance = name_server(url)
        self._timeout_s = timeout_s
        self._wire = Wire(self.instance, headers=headers, now=time.perf_counter, tls=tls, connect_s=timeout_s)

    async def look(self) -> Look:
        """Return what the page says now.

        Raises:
            BackendError: it does not answer in time, or with something else than the counters of a known server.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._wire.get(_METRICS)
        except TimeoutError:
            raise BackendError(f"{self.instance} does not show its counters within {self._timeout_s:g} s.") from None
        except BrokenStream as error:
            raise BackendError(f"{self.instance} does not answer ({error}).") from None
        if not 200 <= answer.status < 300:
            raise BackendError(f"{self.instance}{_METRICS} answers {answer.status}{_explain(answer.status)}.")
        text = b"".join(data for _, data in answer.received).decode(errors="replace")
        at_s = time.time() - (time.perf_counter() - answer.finished)
        look = read_page(text, pool=self.pool, instance=self.instance, at_s=at_s, clock_s=answer.finished)
        if look.server is None:
            raise BackendError(f"{self.instance}{_METRICS} shows no counters of a server that is known.")
        return look

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def name_server(url: str) -> str:
    """Return the URL of the server behind any of its URLs, by which findings name it."""
    return url.partition("?")[0].rstrip("/").removesuffix(_METRICS).removesuffix("/v1")


def open_pages(pools: Mapping[str, Sequence[str]], headers: Mapping[str, Mapping[str, str]]) -> list[HttpPage]:
    """Return the page of every server.

    Args:
        pools: URLs by pool.
        headers: sent to the servers of a pool.

    Raises:
        InvalidSetup: a URL is not an http(s) URL.
    """
    any_tls = any(url.startswith("https:") for urls in pools.values() for url in urls)
    tls = ssl.create_default_context() if any_tls else None
    return [HttpPage(pool, url, headers=headers.get(pool), tls=tls) for pool, urls in pools.items() for url in urls]


async def read_all(pages: Sequence[Page]) -> list[Look | BackendError]:
    """Return what each page says now, or why it says nothing: all are read at once."""

    async def read(page: Page) -> Look | BackendError:
        try:
            return await page.look()
        except BackendError as error:
            return error

    return await asyncio.gather(*map(read, pages))


def _explain(status: int) -> str:
    """Return what a status says of the request, as a clause."""
    if status in (401, 403):
        return ": it wants a key or a header (--api-key-env, --header)"
    return ": give the page that Prometheus scrapes" if status == 404 else ""
