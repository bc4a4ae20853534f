"""What servers' pages of counters said at one instant, and the windows between two such looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from draftwise.backends.exposition import EngineReading, find_engine, parse_engines, parse_start
from draftwise.core import Counters, ServerLoad, SpecStats, Sums, Window

__all__ = ["PLAIN", "Look", "grow", "read_page"]

PLAIN = "plain"
"""The pool whose servers do not speculate, as the operator says."""
_START_TOLERANCE_S = 1.0
"""Of two start times of one process: gateways and exporters round them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One server's page of counters."""

    pool: str
    instance: str
    at_s: float
    """When it was read, in seconds since the epoch."""
    clock_s: float
    """The same on a clock that is never set, in seconds: for durations."""
    engines: tuple[EngineReading, ...]
    server: str | None
    """Engine whose metrics these are, such as vLLM; None where no sample of the page is known."""
    started_s: float | None
    """When the process started, in seconds since the epoch; None where the page does not tell."""


def read_page(text: str, *, pool: str, instance: str, at_s: float, clock_s: float) -> Look:
    """Return what a page of counters says."""
    return Look(
        pool=pool,
        instance=instance,
        at_s=at_s,
        clock_s=clock_s,
        engines=parse_engines(text),
        server=find_engine(text),
        started_s=parse_start(text),
    )


def grow(before: Look, after: Look) -> Iterator[Window]:
    """Yield the window of each engine between two looks at one server.

    An engine that began anew in between has grown since that start only. One that was not there before has no window
    yet, and one that is gone has none any more.
    """
    known = {engine.engine: engine for engine in before.engines}
    for engine in after.engines:
        if (earlier := known.get(engine.engine)) is not None:
            yield _compare(before, after, earlier, engine)


def _compare(before: Look, after: Look, earlier: EngineReading, later: EngineReading) -> Window:
    counters, sums = later.counters - earlier.counters, later.sums - earlier.sums
    restarted = _is_new_start(before, after) or _has_fallen(counters, sums)
    awake = (earlier.sleeping, later.sleeping)
    return Window(
        pool=after.pool,
        instance=after.instance,
        engine=later.engine,
        start_s=before.at_s,
        duration_s=after.clock_s - before.clock_s,
        counters=later.counters if restarted else counters,
        load=_average(earlier.load, later.load),
        sums=later.sums if restarted else sums,
        counts_drafts=later.counts_drafts,
        tells_acceptance=(
            later.counts_drafts is not None or later.counters.spec.num_accepted_tokens > 0 or after.pool == PLAIN
        ),
        restarted=restarted,
        sleeping=None if awake == (None, None) else any(awake),
        adapters=frozenset(name for name, seen_s in later.adapters.items() if seen_s >= before.at_s),
        uptime_s=None if after.started_s is None else after.at_s - after.started_s,
        cache_dtype=later.cache_dtype,
    )


def _is_new_start(before: Look, after: Look) -> bool:
    starts = (before.started_s, after.started_s)
    return None not in starts and abs(starts[1] - starts[0]) > _START_TOLERANCE_S  # type: ignore[operator]


def _has_fallen(counters: Counters, sums: Sums) -> bool:
    """Return whether a counter went down, which it does at a new start only."""
    spec: SpecStats = counters.spec
    counts = (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens, *spec.accepted_per_pos)
    others = (counters.generation_tokens, counters.prefix_queries, counters.prefix_hits)
    totals = (getattr(sums, each.name) for each in fields(Sums))
    return any(count is not None and count < 0 for count in (*counts, *others, *totals))


def _average(a: ServerLoad, b: ServerLoad) -> ServerLoad:
    """Return the mean of both ends; of one end where the other does not tell."""

    def each(x: float | None, y: float | None) -> float | None:
        return (x + y) / 2 if x is not None and y is not None else x if y is None else y

    return ServerLoad(
        running=each(a.running, b.running), waiting=each(a.waiting, b.waiting), kv_usage=each(a.kv_usage, b.kv_usage)
    )
