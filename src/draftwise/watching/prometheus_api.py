"""Asks a Prometheus through its HTTP API."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from draftwise.backends.address import check_url
from draftwise.backends.backend import BrokenStream
from draftwise.backends.wire import Wire
from draftwise.core import BackendError

__all__ = ["PrometheusApi", "Series"]

_TIMEOUT_S = 30.0
"""A query over five minutes takes milliseconds, unless the server is drowned."""
Series = Mapping[str, Any]
"""A series of the API: its labels under `metric`, pairs of seconds and text under `values`."""


class PrometheusApi:
    """A connection to a Prometheus.

    Args:
        url: with the prefix of its path.
        headers: sent with every request.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        check_url(url, where="--prometheus")
        self.url = url.rstrip("/")
        tls = ssl.create_default_context() if url.startswith("https:") else None
        self._wire = Wire(self.url, headers=headers, now=time.perf_counter, tls=tls)

    async def query(self, query: str, *, at_s: float | None = None) -> list[Series]:
        """Return the series that a query gives now, or as it was at another time (seconds since the epoch).

        Raises:
            BackendError: Prometheus does not answer, or refuses the query.
        """
        return await self._ask("query", query=query, **({} if at_s is None else {"time": f"{at_s:.3f}"}))

    async def query_range(self, query: str, *, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return what a query gives at every step of a stretch of time, 11,000 steps at the most.

        Raises:
            BackendError: Prometheus does not answer, or refuses the query.
        """
        return await self._ask("query_range", query=query, start=start_s, end=end_s, step=step_s)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    async def _ask(self, endpoint: str, **given: object) -> list[Series]:
        path = f"/api/v1/{endpoint}?{urlencode(given, quote_via=quote)}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._wire.get(path)
        except TimeoutError:
            raise BackendError(f"{self.url} does not answer within {_TIMEOUT_S:g} s.") from None
        except BrokenStream as error:
            raise BackendError(f"{self.url} does not answer ({error}).") from None
        try:
            body = json.loads(b"".join(data for _, data in answer.received))
            if body["status"] != "success":
                raise BackendError(f"{self.url} refuses the query: {body.get('error', 'no reason is given')}.")
            found: list[Series] = body["data"]["result"]
        except (ValueError, LookupError, TypeError):
            raise BackendError(f"{self.url} answers {answer.status}, and not as Prometheus' API does.") from None
        return found
