"""The lines that vLLM logs every ten seconds while it works, with the same text."""

from __future__ import annotations

from draftwise.core import SpecStats
from draftwise.engine.outputs import EngineStats

__all__ = ["StatsLog", "format_spec_line"]


class StatsLog:
    """Turns snapshots into log lines about the time since the previous one (loggers.py of vLLM 0.32.0)."""

    def __init__(self, start: EngineStats, *, k: int | None, device: str, now: float) -> None:
        self._last, self._last_time = start, now
        self._k = k
        self._device = device
        self._was_idle = True

    def make_lines(self, stats: EngineStats, now: float) -> list[str]:
        """Return the lines of the window that ends now: none if idle; a line about drafts only if there were some."""
        before, elapsed_s = self._last, max(now - self._last_time, 1e-9)
        self._last, self._last_time = stats, now
        prompt = (stats.prompt_tokens - before.prompt_tokens) / elapsed_s
        generation = (stats.generation_tokens - before.generation_tokens) / elapsed_s
        idle = not (prompt or generation or stats.num_running or stats.num_waiting)
        was_idle, self._was_idle = self._was_idle, idle
        if idle and was_idle:
            return []
        queries = stats.prefix_cache_queries - before.prefix_cache_queries
        hits = stats.prefix_cache_hits - before.prefix_cache_hits
        preemptions = stats.num_preemptions - before.num_preemptions
        parts = [
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s",
            f"Avg generation throughput: {generation:.1f} tokens/s",
            f"Running: {stats.num_running} reqs",
            f"Waiting: {stats.num_waiting} reqs",
            *([f"Preemptions: {preemptions}"] if preemptions else []),
            f"{self._device} KV cache usage: {stats.kv_cache_usage * 100:.1f}%",
            *([f"Prefix cache hit rate: {hits / queries * 100:.1f}%"] if queries else []),
        ]
        drafted = stats.spec - before.spec
        spec = [format_spec_line(drafted, self._k, elapsed_s)] if self._k is not None and drafted.num_drafts else []
        return [", ".join(parts), *spec]


def format_spec_line(stats: SpecStats, k: int, elapsed_s: float) -> str:
    """Return vLLM's line about the drafts of one window."""
    assert stats.acceptance_length is not None
    rates = stats.rate_per_pos + (0.0,) * (k - len(stats.rate_per_pos))
    return (
        "SpecDecoding metrics: "
        f"Mean acceptance length: {stats.acceptance_length:.2f}, "
        f"Accepted throughput: {stats.num_accepted_tokens / elapsed_s:.2f} tokens/s, "
        f"Drafted throughput: {stats.num_draft_tokens / elapsed_s:.2f} tokens/s, "
        f"Accepted: {stats.num_accepted_tokens} tokens, "
        f"Drafted: {stats.num_draft_tokens} tokens, "
        f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
        f"Avg Draft acceptance rate: {(stats.acceptance_rate or 0) * 100:.1f}%"
    )
