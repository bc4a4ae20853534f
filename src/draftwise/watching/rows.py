"""What was seen, as JSON: one object a look, one a pool, one an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.core import Window
from draftwise.watching.watcher import Snapshot
from draftwise.watching.yardstick import Yardstick

__all__ = ["snapshot_to_dict"]

_READINGS = (
    "tokens_per_step",
    "tokens_per_decode_step",
    "coverage",
    "acceptance_length",
    "mean_k",
    "wasted_per_token",
    "seconds_per_token",
    "step_s",
    "output_tokens_per_s",
    "engine_steps_per_s",
    "finished_per_s",
    "preemptions_per_s",
    "prefix_hit_rate",
    "prefill_s_per_token",
    "decode_share",
    "mean_queue_s",
    "mean_first_token_s",
    "mean_prompt_tokens",
    "mean_output_tokens",
)
"""Properties of a window, by the names that JSON has for them."""


def snapshot_to_dict(snapshot: Snapshot, yardstick: Yardstick, *, unanswered: Sequence[str]) -> dict[str, Any]:
    """Return what was seen at one time.

    Args:
        snapshot: what was seen, with all findings.
        yardstick: what it was held against.
        unanswered: what could not be told, a sentence each.
    """
    return {
        "at_s": snapshot.at_s,
        "expected": {
            "tokens_per_step": yardstick.tokens_per_step,
            "break_even": yardstick.break_even,
            "crossover": yardstick.crossover,
        },
        "pools": [_pool_to_dict(snapshot.of(pool)) for pool in snapshot.pools],
        "findings": [finding.to_dict() for finding in snapshot.findings],
        "unanswered": list(unanswered),
    }


def _pool_to_dict(windows: Sequence[Window]) -> dict[str, Any]:
    whole = Window.pooled(windows)
    assert whole is not None, "a pool has windows"
    return {"pool": whole.pool, **_window_to_dict(whole), "by_engine": [_engine_to_dict(each) for each in windows]}


def _engine_to_dict(window: Window) -> dict[str, Any]:
    return {"instance": window.instance, "engine": window.engine, **_window_to_dict(window)}


def _window_to_dict(window: Window) -> dict[str, Any]:
    return {
        "engines": window.engines,
        "start_s": window.start_s,
        "duration_s": window.duration_s,
        "counts_drafts": window.counts_drafts,
        "restarted": window.restarted,
        "sleeping": window.sleeping,
        "adapters": sorted(window.adapters),
        "uptime_s": window.uptime_s,
        "cache_dtype": window.cache_dtype,
        "running": window.load.running,
        "waiting": window.load.waiting,
        "kv_usage": window.load.kv_usage,
        "counted": _count(window),
        **{name: getattr(window, name) for name in _READINGS},
        "rate_per_pos": list(window.rate_per_pos),
        "conditional_rate_per_pos": list(window.conditional_rate_per_pos),
    }


def _count(window: Window) -> Mapping[str, float | None]:
    """Return how much it rests on."""
    stats = window.counters.spec
    return {
        "output_tokens": window.output_tokens,
        "drafts": stats.num_drafts,
        "draft_tokens": stats.num_draft_tokens,
        "accepted_tokens": stats.num_accepted_tokens,
        "finished": window.sums.finished,
    }
