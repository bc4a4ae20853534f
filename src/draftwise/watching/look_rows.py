"""The JSON document of one reading of a service: an object for the reading, each pool and each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from draftwise.core import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRow:
    """The baseline's expectations; null if unknown."""

    tokens_per_step: float | None
    """Measured tokens per step."""
    break_even: float | None
    """Tokens per step below which speculation does not pay."""
    crossover: float | None
    """Requests in flight beyond which speculation does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """Amount of data behind the readings."""

    output_tokens: float | None
    """Generated tokens."""
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    finished: float | None
    """Requests that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """Readings of one engine, or of several pooled engines, over a window."""

    engines: int
    """Number of pooled engines."""
    start_s: float
    """Seconds since the epoch."""
    duration_s: float
    """Length in seconds; the mean if engines are pooled."""
    counts_drafts: bool | None
    """Whether draft counters exist; null if their absence means nothing."""
    restarted: bool
    """Whether an engine restarted within the window. Its counters then cover only the time since."""
    sleeping: bool | None
    """Whether an engine is asleep; null if unknown."""
    adapters: frozenset[str]
    """LoRA adapters that requests used."""
    uptime_s: float | None
    """Seconds since the process started; the shortest if engines are pooled."""
    cache_dtype: str | None
    """Type of the KV cache; null if unknown, or if it differs."""
    running: float | None
    """Running requests, over all engines."""
    waiting: float | None
    """Waiting requests, over all engines."""
    kv_usage: float | None
    """Share of the KV cache in use, on the fullest engine."""
    counted: CountRow
    tokens_per_step: float | None
    """Generated / (generated - accepted): tokens per step of a sequence."""
    tokens_per_decode_step: float | None
    """The same without the first tokens of answers, which prefill emits."""
    coverage: float | None
    """Share of steps that verified a draft."""
    acceptance_length: float | None
    """1 + accepted / drafts: tokens per step with a draft."""
    reported_acceptance_length: float | None
    """Value of the server's own gauge over its last steps; null for several engines."""
    mean_k: float | None
    """Draft tokens per draft."""
    wasted_per_token: float | None
    """Rejected draft tokens per output token."""
    seconds_per_token: float | None
    """Seconds between tokens of a stream, over finished requests."""
    step_s: float | None
    """Seconds per token x tokens per step."""
    output_tokens_per_s: float | None
    """Sum over all engines."""
    engine_steps_per_s: float | None
    """Forward passes per second, over all engines."""
    finished_per_s: float | None
    """Finished requests per second, over all engines."""
    preemptions_per_s: float | None
    """Sum over all engines."""
    prefix_hit_rate: float | None
    """Share of prompt tokens found in the prefix cache, of those looked up."""
    prefill_s_per_token: float | None
    """Prefill time per computed prompt token."""
    decode_share: float | None
    """Decode time / (queue + prefill + decode time)."""
    mean_queue_s: float | None
    """Mean of finished requests."""
    mean_first_token_s: float | None
    """Mean seconds from arrival to the first token."""
    mean_prompt_tokens: float | None
    """Mean of finished requests."""
    mean_output_tokens: float | None
    """Mean of finished requests."""
    rate_per_pos: tuple[float, ...]
    """Share of all drafts accepted up to each position."""
    conditional_rate_per_pos: tuple[float, ...]
    """Share accepted at each position, of the drafts accepted up to the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow(WindowRow):
    """One engine."""

    instance: str
    """URL or label of the server."""
    engine: str
    """Label of the data-parallel rank; empty if missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow(WindowRow):
    """Readings pooled over servers of one kind."""

    pool: str
    """Name of the pool: spec, plain, or the value of the label `pool`."""
    by_engine: tuple[EngineRow, ...]


_NAMES = tuple(
    each.name
    for each in fields(WindowRow)
    if each.name not in ("running", "waiting", "kv_usage", "reported_acceptance_length", "counted")
)


def describe_pool(windows: Sequence[Window]) -> PoolRow:
    """Return the row of a pool with at least one window."""
    whole = Window.pooled(windows)
    assert whole is not None, "a pool has windows"
    engines = (EngineRow(instance=each.instance, engine=each.engine, **_read(each)) for each in windows)
    return PoolRow(pool=whole.pool, by_engine=tuple(engines), **_read(whole))


def _read(window: Window) -> dict[str, Any]:
    load, stats = window.load, window.counters.spec
    return {
        **{name: getattr(window, name) for name in _NAMES},
        "running": load.running,
        "waiting": load.waiting,
        "kv_usage": load.kv_usage,
        "reported_acceptance_length": load.reported_length,
        "counted": CountRow(
            output_tokens=window.output_tokens,
            drafts=stats.num_drafts,
            draft_tokens=stats.num_draft_tokens,
            accepted_tokens=stats.num_accepted_tokens,
            finished=window.sums.finished,
        ),
    }
