"""Windows out of what a Prometheus recorded: the servers' pages, put together again scrape by scrape."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import quote, urlencode

from draftwise.backends.address import check_url
from draftwise.backends.base import BrokenStream
from draftwise.backends.wire import Wire
from draftwise.core import BackendError, Window
from draftwise.facts.server_metrics import get_server, is_renamed, read_server_metrics
from draftwise.watch.look import Look, grow, read_page
from draftwise.watch.watcher import RECENT_S, Sight, tick_every, unread

__all__ = ["PrometheusWatcher"]

_TIMEOUT_S = 30.0
"""A query over five minutes takes milliseconds, unless the server is drowned."""
_Series = Mapping[str, Any]
"""A series of the API: its labels under `metric`, pairs of seconds and text under `values`."""


class PrometheusWatcher:
    """Asks for the last minutes again and again.

    Args:
        url: of the Prometheus, with the prefix of its path.
        model: label `model_name` of the service; None takes the only one there is.
        headers: sent with every request.
        span_s: how far each window goes back.
        now: the clock, in seconds since the epoch.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        span_s: float = RECENT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_url(url, where="--prometheus")
        self._url, self._model, self._span_s, self._now = url.rstrip("/"), model, span_s, now
        tls = ssl.create_default_context() if url.startswith("https:") else None
        self._wire = Wire(self._url, headers=headers, now=time.perf_counter, tls=tls)

    async def sights(self, interval_s: float) -> AsyncGenerator[Sight]:
        """Yield what was recorded, at once and then at every interval."""
        try:
            async for _ in tick_every(interval_s):
                yield await self.look()
        finally:
            self._wire.close()

    async def look(self) -> Sight:
        """Return what was recorded in the last minutes."""
        try:
            series = await self._ask(f"{_select(self._model)}[{self._span_s:.0f}s]")
            starts = await self._ask(f"process_start_time_seconds and on (job, instance) {_select(self._model)}")
            looks = _put_together(_of_one_model(series, self._url), starts)
        except BackendError as error:
            return Sight(at_s=self._now(), windows=(), recent=(), findings=(unread(self._url, error),))
        pairs = [list(_chain(each)) for each in looks]
        return Sight(
            at_s=self._now(),
            windows=tuple(windows[-1] for each in pairs for windows in each),
            recent=tuple(reduce(Window.followed_by, windows) for each in pairs for windows in each),
        )

    async def _ask(self, query: str) -> list[_Series]:
        """Return the series that a query gives.

        Raises:
            BackendError: Prometheus does not answer, or refuses the query.
        """
        path = f"/api/v1/query?{urlencode({'query': query}, quote_via=quote)}"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._wire.get(path)
        except TimeoutError:
            raise BackendError(f"{self._url} does not answer within {_TIMEOUT_S:g} s.") from None
        except BrokenStream as error:
            raise BackendError(f"{self._url} does not answer ({error}).") from None
        try:
            body = json.loads(b"".join(data for _, data in answer.received))
            if body["status"] != "success":
                raise BackendError(f"{self._url} refuses the query: {body.get('error', 'no reason is given')}.")
            found: list[_Series] = body["data"]["result"]
        except (ValueError, LookupError, TypeError):
            raise BackendError(f"{self._url} answers {answer.status}, and not as Prometheus' API does.") from None
        return found


def _select(model: str | None) -> str:
    """Return the selector of all samples of vLLM that are read, whoever changed their names."""
    own = [name for name in read_server_metrics() if get_server(name) == "vLLM" and not is_renamed(name)]
    names = "|".join(sorted({name.removeprefix("vllm:").removesuffix("_total") for name in own}))
    of_model = "" if model is None else f",model_name={json.dumps(model)}"
    return f'{{__name__=~"(ray_)?vllm[:_]({names})(_total)?"{of_model}}}'


def _of_one_model(series: Sequence[_Series], url: str) -> Sequence[_Series]:
    """Return the series, which are of one model.

    Raises:
        BackendError: there are none, or they are of several.
    """
    models = sorted({each["metric"].get("model_name", "") for each in series} - {""})
    if not series:
        raise BackendError(f"{url} has recorded no counters of such a service in the last minutes.")
    if len(models) > 1:
        raise BackendError(f"{url} has recorded several models, of which --model names one: {', '.join(models)}.")
    return series


def _put_together(series: Iterable[_Series], starts: Iterable[_Series]) -> Iterator[list[Look]]:
    """Yield the looks of each server, one a scrape: all samples of a scrape have one time."""
    started = {_place(each["metric"]): float(each["value"][1]) for each in starts}
    pages: dict[tuple[str, str], dict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in series:
        name = _write_name(each["metric"])
        for at_s, value in each["values"]:
            pages[_place(each["metric"])][at_s].append(f"{name} {value}\n")
    for place, scrapes in pages.items():
        began = started.get(place)
        yield [
            read_page(
                _say_start(began, at_s) + "".join(lines), pool=place[0], instance=place[1], at_s=at_s, clock_s=at_s
            )
            for at_s, lines in sorted(scrapes.items())
        ]


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return pool and instance; the label `pool` is what `draftwise deploy` lets Prometheus add."""
    return labels.get("pool", "spec"), labels.get("instance", "")


def _write_name(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if name != "__name__")
    return f"{labels['__name__']}{{{pairs}}}"


def _say_start(began_s: float | None, at_s: float) -> str:
    """Return the sample of a process's start, where it had begun by then: of the one before, nothing is known."""
    return "" if began_s is None or began_s > at_s else f"process_start_time_seconds {began_s}\n"


def _chain(looks: Sequence[Look]) -> Iterator[list[Window]]:
    """Yield the windows of each engine, one behind the other."""
    windows = [window for before, after in pairwise(looks) for window in grow(before, after)]
    by_engine = sorted(windows, key=lambda window: (window.engine, window.start_s))
    for _, each in groupby(by_engine, key=lambda window: window.engine):
        yield list(each)
