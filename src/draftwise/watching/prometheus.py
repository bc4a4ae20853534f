"""Reads windows from Prometheus: rebuilds the servers' metrics pages scrape by scrape."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import groupby, pairwise
from typing import Any
from urllib.parse import quote, urlencode

from draftwise.backends.address import check_url
from draftwise.backends.backend import BrokenStream
from draftwise.backends.exposition import (
    DRAFT_NAMES,
    Sample,
    gather_engines,
    leave_drafts_unknown,
    leave_out_known,
    make_sample,
)
from draftwise.backends.wire import Wire
from draftwise.core import BackendError, Finding, Window
from draftwise.knowledge.messages import fault
from draftwise.knowledge.metrics import VLLM, read_server_metrics
from draftwise.machine.network import find_proxy
from draftwise.watching.rollout import RollOut, find_rollout
from draftwise.watching.stalls import Stalls, tell_hung_or_copied
from draftwise.watching.watcher import (
    CLOCKS_DIFFER_S,
    FALLS,
    RECENT_S,
    Look,
    Snapshot,
    begins_anew,
    falls_back,
    find_renamed,
    grow,
    leave_out_damaged,
    tell_several,
    tick_every,
    unread,
)

_TIMEOUT_S = 30.0
"""Timeout in seconds. A query over five minutes takes milliseconds, unless the server is overloaded."""
_LATE_S, _LATE = 60.0, 3.0
"""Seconds, and scrape intervals, after which a target is late."""
_GONE = 2.5
"""Scrape intervals behind the newest server after which a server is gone."""
_OF_DRAFTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "accepted_per_pos")
Series = Mapping[str, Any]
"""A series of the API: labels under `metric`, (seconds, text) pairs under `values`."""


TURNS = "(resets({0}) > 0) and (max_over_time({0}) - min_over_time({0}) > 1)"
"""Query: how often a target's start time decreased by more than its rounding."""
MOVES = "(max_over_time({0}) - min_over_time({0}) > 1)"
"""Query: by how many seconds a target's start time moved."""
RESTARTS = (
    "(changes(process_start_time_seconds[1h]) >= 3) and (max_over_time(process_start_time_seconds[1h]) "
    "- min_over_time(process_start_time_seconds[1h]) > 30)"
)
"""Query: targets whose process restarted repeatedly within an hour: a clock that is set moves its start less."""
COPIES = "(changes(process_cpu_seconds_total[2m]) == 0) and (count_over_time(process_cpu_seconds_total[2m]) > 2)"
"""Query: targets of whose process not even the CPU time changes, which a page costs: a cache answers for them."""
NEVER = "max by ({1}) (max_over_time(up{{{0}}}[{2:.0f}s])) == 0 and max by ({1}) (up{{{0}}} offset {2:.0f}s) == 0"
"""Query: targets that could not be scraped for as long."""
MUTE = "max by ({1}) (min_over_time(up{{{0}}}[2m])) == 1 unless on (instance) {2}"
"""Query: targets that are scraped and pass on no server's counters."""
_ANSWERS = 'increase(http_requests_total{{handler=~"/v1/.*",method="POST"}}[{:.0f}s])'
"""Requests by HTTP status; these series name no model."""
_READ_LABELS = frozenset(
    {
        *("engine", "ReplicaId", "position", "le", "sleep_state", "running_lora_adapters", "cache_dtype"),
        *("tp_rank", "pp_rank", "finished_reason", "model_name"),
    }
)
"""Labels needed to rebuild a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Labels that select a service. None matches any value."""

    model: str | None = None
    service: str | None = None
    """Label that `draftwise deploy` has Prometheus put on the targets."""
    namespace: str | None = None

    @property
    def matchers(self) -> str:
        """Label matchers, to append to others."""
        wanted = {"model_name": self.model, "service": self.service, "namespace": self.namespace}
        return "".join(f",{label}={json.dumps(value)}" for label, value in wanted.items() if value is not None)

    @property
    def of_targets(self) -> str:
        """The same for series of the targets themselves, which name no model: those that `draftwise deploy` labels."""
        return 'service!="",pool!=""' + replace(self, model=None).matchers


class PrometheusApi:
    """A connection to a Prometheus.

    Args:
        url: base URL, including any path prefix.
        headers: sent with every request.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        check_url(url, where="--prometheus")
        self.url = url.rstrip("/")
        self._wire = Wire(self.url, headers=headers, now=time.perf_counter, proxy=find_proxy(self.url))

    async def query(self, query: str, *, at_s: float | None = None) -> list[Series]:
        """Return the series of an instant query, now or at `at_s` (seconds since the epoch).

        Raises:
            BackendError: Prometheus does not answer, or rejects the query.
        """
        return await self._ask("query", query=query, **({} if at_s is None else {"time": f"{at_s:.3f}"}))

    async def query_range(self, query: str, *, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return the series of a range query, with at most 11,000 steps.

        Raises:
            BackendError: Prometheus does not answer, or rejects the query.
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
            raise BackendError(f"{self.url} did not answer within {_TIMEOUT_S:g} s.") from None
        except BrokenStream as error:
            raise BackendError(f"{self.url} does not answer ({error}).") from None
        try:
            body = json.loads(b"".join(data for _, data in answer.received))
            if body["status"] != "success":
                raise BackendError(f"{self.url} rejects the query: {body.get('error', 'no reason is given')}.")
            found: list[Series] = body["data"]["result"]
            for each in body["data"]["result"]:
                each["metric"] = _name_server(each["metric"])
        except (ValueError, LookupError, TypeError):
            raise BackendError(f"{self.url} answers {answer.status}, which is not Prometheus' API.") from None
        return found


class PrometheusWatcher:
    """Queries the last minutes repeatedly.

    Args:
        url: Prometheus's base URL, including any path prefix.
        selection: labels of the service. Without any, the only service counts.
        headers: sent with every request.
        span_s: length of each window in seconds.
        now: returns the time in seconds since the epoch.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(
        self,
        url: str,
        *,
        selection: Selection = Selection(),
        headers: Mapping[str, str] | None = None,
        span_s: float = RECENT_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.api = PrometheusApi(url, headers=headers)
        self._selection, self._span_s, self._now = selection, span_s, now

    async def begin(self) -> None:
        """Do nothing: earlier data is recorded."""

    async def snapshots(self, interval_s: float) -> AsyncGenerator[Snapshot]:
        """Yield a snapshot of the recorded data, now and then at every interval."""
        try:
            async for _ in tick_every(interval_s):
                yield await self.look()
        finally:
            self.api.close()

    async def look(self, *, since_s: float | None = None) -> Snapshot:
        """Return a snapshot of the data recorded in the last minutes.

        Args:
            since_s: ignore earlier data (seconds since the epoch).
        """
        span_s = self._span_s if since_s is None else min(self._span_s, max(1.0, self._now() - since_s))
        try:
            series = await self.api.query(f"{select(self._selection)}[{span_s:.0f}s]")
            looks = put_together(_of_one_service(leave_out_copies(series), self.api.url), await self._ask_starts())
            answers = leave_out_copies(await self._ask_starts(_ANSWERS.format(span_s)))
            start = f"process_start_time_seconds[{span_s:.0f}s]"
            turns = await self._ask_starts(TURNS.format(start))
            moves = list_targets(await self._ask_starts(MOVES.format(start)), lambda seconds: seconds > 0)
            again = list_targets(await self._ask_starts(RESTARTS), lambda count: 2 < count < 3600)
            copied = list_targets(await self._ask_starts(COPIES), lambda changes: changes == 0)
            pages = leave_unknown(looks, await ask_unknown(self.api, self._selection))
            unread_targets = await self._find_unread(pages)
            pages = [each for each in pages if (each[0].pool, each[0].instance) not in copied]
            unread_targets += [tell_copied(self.api.url, place[1]) for place in copied]
        except BackendError as error:
            return Snapshot(at_s=self._now(), windows=(), recent=(), findings=(unread(self.api.url, error),))
        several = {(each[0].pool, each[0].instance) for each in pages if alternates(each)}
        several |= set(list_targets(turns, lambda count: 0 < count < span_s))  # the start of a process never goes back
        odd = {(each[0].pool, each[0].instance) for each in pages if contradicts(each, moves)} - several
        pairs = [list(_chain(each)) for each in pages if (each[0].pool, each[0].instance) not in several | odd]
        stalls, gone = Stalls(), _list_gone(pages)
        every = (window for each in pairs for windows in each for window in windows)
        stalls.add(window for window in every if window.instance not in gone)
        timed = {each[-1].instance for each in pages if each[-1].started_s is not None or _changes(each)}
        return Snapshot(
            at_s=self._now(),
            gone=gone,
            findings=(
                *unread_targets,
                *(tell_several(place[1], is_start=place in odd) for place in sorted(several | odd)),
                *(
                    fault("engine-dies", case="restarts", where=place[1], count=count, span="an hour")
                    for place, count in again.items()
                    if place not in several
                ),
                *find_renamed(each[-1] for each in pages if each[-1].instance not in gone),
                *(each if each.where in timed else tell_hung_or_copied(each) for each in stalls.find()),
            ),
            windows=tuple(windows[-1] for each in pairs for windows in each),
            recent=_add_answers([reduce(Window.followed_by, windows) for each in pairs for windows in each], answers),
        )

    async def _find_unread(self, pages: Sequence[Sequence[Look]]) -> list[Finding]:
        """Return the targets that Prometheus still looks for, unlike those of an old roll-out, and cannot scrape."""
        now_s = max([self._now(), *(looks[-1].at_s for looks in pages)])  # whose clock is later, of the two machines
        late = _list_late(pages, now_s)
        down, mute = set[tuple[str, str]](), set[tuple[str, str]]()
        if len(late) == len(pages) and (told := await self.api.query("vector(time())")):
            late = down = _list_late(pages, float(told[0]["value"][1]))  # none is scraped, unless this clock is fast
        elif late:
            names = json.dumps("|".join(re.escape(name) for _, name in sorted(late)))
            down = late & {_place(each["metric"]) for each in await self.api.query(f"up{{instance=~{names}}} == 0")}
        if self._selection.service:
            query = NEVER.format(self._selection.of_targets, "instance, pool", self._span_s)
            known = {(looks[0].pool, looks[0].instance) for looks in pages}
            down |= set(list_targets(await self.api.query(query), lambda value: value == 0)) - known
            tokens = select(self._selection, {"generation_tokens"})
            query = MUTE.format(self._selection.of_targets, "instance, pool", tokens)
            mute = set(list_targets(await self.api.query(query), lambda value: value == 1)) - known
        return [
            *(tell_unread(self.api.url, name) for _, name in sorted(down)),
            *(tell_mute(self.api.url, name) for _, name in sorted(mute)),
        ]

    async def look_before(self, at_s: float | None) -> tuple[RollOut | None, tuple[Window, ...]]:
        """Return the roll-out derived from the servers' start times, and the windows of the minutes before it.

        Args:
            at_s: start of the roll-out, in seconds since the epoch. None: the last roll-out.

        Raises:
            BackendError: Prometheus does not answer.
        """
        rollout = find_rollout([float(each["value"][1]) for each in await self._ask_starts()], at_s)
        if rollout is None:
            return None, ()
        series = await self.api.query(f"{select(self._selection)}[{self._span_s:.0f}s]", at_s=rollout.began_s)
        chains = (windows for looks in put_together(leave_out_copies(series), ()) for windows in _chain(looks))
        return rollout, tuple(reduce(Window.followed_by, windows) for windows in chains)

    async def _ask_starts(self, query: str = "process_start_time_seconds") -> list[Series]:
        return await self.api.query(f"{query} and on (job, instance) {select(self._selection)}")


SERVERS = ("exported_instance", "pod", "k8s_pod_name", "service_instance_id")
"""Labels that name a server where `instance` is a collector that passes its page on, a node, or missing."""


_SCRAPERS = ("job", "prometheus_replica", "__replica__", "receive_replica")
"""Labels of who scraped a target."""
PLACE = ("__name__", "pool", "instance", *SERVERS)


def _name_server(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return labels whose `instance` is the server."""
    if "exported_instance" not in labels and ":" in labels.get("instance", ""):
        return labels
    name = next((labels[each] for each in SERVERS if labels.get(each)), None)
    return {**labels, "instance": name} if name else labels


def select(selection: Selection, readings: Collection[str] = (), *, without: Collection[str] = ()) -> str:
    """Return the selector for vLLM's samples, under all known names.

    Args:
        selection: labels of the service.
        readings: readings to include; empty: all.
        without: readings to leave out.
    """
    known = {name: each.reading for name, each in read_server_metrics().items() if name.startswith(VLLM)}
    wanted = {*readings} or {*known.values()} - {*without}
    own = {name.removeprefix(VLLM).removesuffix("_total") for name, reading in known.items() if reading in wanted}
    names = "|".join(sorted(own)).replace("total_", "(total_)?").replace("_", "[_.]")
    return f'{{__name__=~"(.*[_:.])?vllm[_:.]({names})([_.](total|ratio))*"{selection.matchers}}}'


def _of_one_service(series: Sequence[Series], url: str) -> Sequence[Series]:
    """Return the series, which are of one service.

    Raises:
        BackendError: there are no series, or they are of several services or models.
    """
    if not series:
        raise BackendError(f"{url} recorded no counters of such a service in the last minutes.")
    series = [each for each in series if each["metric"].get("instance")]
    if not series:
        raise nameless(url)
    for label, option in (("service", "--service"), ("namespace", "--namespace")):
        values = sorted({each["metric"].get(label, "") for each in series} - {""})
        if len(values) > 1:
            raise BackendError(f"{url} recorded several services. Choose one with {option}: {', '.join(values)}.")
    places = {(each["metric"].get("instance", ""), each["metric"].get("cluster", "")) for each in series}
    if len(places) > len({instance for instance, _ in places}):
        clusters = ", ".join(sorted({cluster for _, cluster in places}))
        raise BackendError(f"{url} recorded the same addresses in several clusters. Ask one cluster's own: {clusters}.")
    models = sorted({each["metric"].get("model_name", "") for each in series} - {""})
    if len(models) > 1:
        raise BackendError(f"{url} recorded several models. Choose one with --model: {', '.join(models)}.")
    return series


def leave_out_copies(series: Iterable[Series]) -> list[Series]:
    """Return each target's series once if several jobs scrape it: those with deploy's labels, else those of one job.

    Of several Prometheus servers that scrape the same targets, those of one.
    """
    rows = [
        (
            each,
            tuple(labels.get(name, "") for name in _SCRAPERS),
            (bool(labels.get("service")), labels.get("instance", "")),
        )
        for each in series
        for labels in [each["metric"]]
    ]
    kept = {place: scraper for _, scraper, place in reversed(rows)}
    return [each for each, by, place in rows if by == kept[place] and (place[0] or (True, place[1]) not in kept)]


def put_together(series: Iterable[Series], starts: Iterable[Series]) -> Iterator[list[Look]]:
    """Yield the looks of each server, one per scrape. All samples of a scrape share a timestamp."""
    started = {_place(each["metric"]): float(each["value"][1]) for each in starts}
    pages: dict[tuple[str, str], dict[float, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    revisions = {}
    told: dict[tuple[str, ...], set[float]] = defaultdict(set)
    several = set()
    for each in series:
        labels = each["metric"]
        name, shown, place = labels["__name__"], _write_labels(labels), _place(labels)
        revisions[place] = labels.get("revision", "")
        if "generation" in name:
            times = {at_s for at_s, _ in each["values"]}
            if times & told[name, shown, *place]:
                several.add(place)
            told[name, shown, *place] |= times
        for at_s, value in each["values"]:
            sample = make_sample(name, shown, value)
            if sample is not None:
                pages[place][at_s].append(sample)
    for place, scrapes in pages.items():
        began = started.get(place)
        yield [
            Look(
                pool=place[0],
                instance=place[1],
                at_s=at_s,
                clock_s=at_s,
                engines=gather_engines(samples, server) if server else (),
                server=server,
                # Of the process before one that began later, nothing is known.
                started_s=None if began is None or began > at_s else began,
                revision=revisions[place],
                several=place in several,
            )
            for at_s, samples in sorted(scrapes.items())
            for server in [samples[0][0].server]
        ]


def nameless(url: str) -> BackendError:
    """Return the error for sums that name no server."""
    return BackendError(f"{url} recorded counters without `instance` or `pod`, so their servers are unknown.")


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return pool and instance; the label `pool` is what `draftwise deploy` lets Prometheus add."""
    return labels.get("pool", "spec"), labels.get("instance", "")


def _add_answers(windows: Sequence[Window], answers: Iterable[Series]) -> tuple[Window, ...]:
    """Return windows with the requests that their servers refused or broke off; the first engine has them all."""
    counts: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in answers:
        if "value" in each and (status := each["metric"].get("status")):
            counts[_place(each["metric"])][status[:1]] += float(each["value"][1])
    added = []
    for window in windows:
        found = counts.get((window.pool, window.instance))
        if found is not None:
            sums = replace(window.sums, refused=found.pop("4", 0.0), broken=found.pop("5", 0.0))
            window = replace(window, sums=sums)
        added.append(window)
    return tuple(added)


def _find_interval(looks: Sequence[Look]) -> float:
    """Return the mean seconds between the looks at one target."""
    return (looks[-1].at_s - looks[0].at_s) / max(len(looks) - 1, 1)


def _list_late(pages: Sequence[Sequence[Look]], now_s: float) -> set[tuple[str, str]]:
    """Return the targets whose newest look is older than some scrapes."""
    return {
        (looks[-1].pool, looks[-1].instance)
        for looks in pages
        if now_s - looks[-1].at_s > max(_LATE_S, _LATE * _find_interval(looks))
    }


def _list_gone(pages: Sequence[Sequence[Look]]) -> frozenset[str]:
    """Return the targets whose counters ended scrapes before the newest ones."""
    newest_s = max((looks[-1].at_s for looks in pages), default=0.0)
    gone = [looks[-1] for looks in pages if newest_s - looks[-1].at_s > _GONE * _find_interval(looks)]
    return frozenset(look.instance for look in gone)


def list_targets(series: Iterable[Series], holds: Callable[[float], bool]) -> dict[tuple[str, str], float]:
    """Return the targets with a value that a query asks for: some APIs answer with something else."""
    values = {_place(each["metric"]): float(each.get("value", (0, -1.0))[1]) for each in series}
    return {place: value for place, value in values.items() if holds(value)}


def tell_unread(url: str, instance: str) -> Finding:
    """Return the finding for a target that a Prometheus cannot scrape."""
    return unread(instance, BackendError(f"{url} no longer gets the counters of {instance}."))


def tell_copied(url: str, instance: str) -> Finding:
    """Return the finding for a target that a cache answers for."""
    text = (
        f"{url} gets a page of {instance} that does not change, not even the CPU time of the process: a cache answers"
    )
    return unread(instance, BackendError(f"{text} in its place. Have the pod itself scraped."))


def tell_mute(url: str, instance: str) -> Finding:
    """Return the finding for a target that a Prometheus scrapes, and that has no counters."""
    text = f"{url} scrapes {instance}, but gets no counters: start the server without --disable-log-stats"
    return unread(instance, BackendError(f"{text}."))


_quote = lru_cache(10_000)(json.dumps)


def _write_labels(labels: Mapping[str, str]) -> str:
    return ",".join([f"{name}={_quote(labels[name])}" for name in labels if name in _READ_LABELS])


async def ask_unknown(api: PrometheusApi, selection: Selection) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return the names of no known release that speak of drafts, by pool and instance.

    Raises:
        BackendError: Prometheus does not answer.
    """
    own = select(selection, _OF_DRAFTS).replace("__name__=~", "__name__!~")[1:]
    names = defaultdict(list)
    for each in await api.query(
        f'count by ({", ".join(PLACE)}) ({{__name__=~{json.dumps(DRAFT_NAMES)},__name__!~".*_created",{own})'
    ):
        names[_place(each["metric"])].append(each["metric"]["__name__"])
    return {place: leave_out_known(found) for place, found in names.items()}


def leave_unknown(pages: Iterable[list[Look]], unknown: Mapping[tuple[str, str], tuple[str, ...]]) -> list[list[Look]]:
    """Return the looks. A server with names of no known release that speak of drafts may draft."""
    return [[_without_drafts(look, unknown.get((look.pool, look.instance), ())) for look in looks] for looks in pages]


def _without_drafts(look: Look, unknown: tuple[str, ...]) -> Look:
    return replace(look, unknown=unknown, engines=leave_drafts_unknown(look.engines)) if unknown else look


def _changes(looks: Sequence[Look]) -> bool:
    """Return whether the newest page differs from the one before it: no copy does."""
    return len(looks) > 1 and looks[-1].engines != looks[-2].engines


def alternates(looks: Sequence[Look]) -> bool:
    """Say whether one address stands for several servers: counters fall again and again, or stand there twice.

    If the start of the process is known, it decides: one that only goes forward is of a server that dies and begins.
    """
    falls = 0 if looks[-1].started_s is not None else sum(falls_back(*pair) for pair in pairwise(looks))
    return any(look.several for look in looks) or falls >= FALLS


def contradicts(looks: Sequence[Look], moves: Mapping[tuple[str, str], float]) -> bool:
    """Say whether of a target's start time and its counters, one began anew and the other did not.

    Args:
        looks: looks at the target.
        moves: answer to `MOVES`.
    """
    if looks[-1].started_s is None or len(looks) < 2:
        return False
    moved_s = moves.get((looks[0].pool, looks[0].instance), 0.0)
    began = any(begins_anew(*pair) for pair in pairwise(leave_out_damaged(looks)))
    return not moved_s if began else moved_s > CLOCKS_DIFFER_S


def _chain(looks: Sequence[Look]) -> Iterator[list[Window]]:
    """Yield the windows of each engine, one behind the other."""
    windows = [window for before, after in pairwise(leave_out_damaged(looks)) for window in grow(before, after)]
    by_engine = sorted(windows, key=lambda window: (window.engine, window.start_s))
    for _, each in groupby(by_engine, key=lambda window: window.engine):
        yield list(each)
