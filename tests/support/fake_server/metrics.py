"""What a pretend server counts, and its /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from draftwise.core import Counters, ServerLoad, SpecStats
from draftwise.knowledge.metrics import (
    METRICS,
    SPEC_NUM_ACCEPTED_TOKENS,
    SPEC_NUM_ACCEPTED_TOKENS_PER_POS,
    SPEC_NUM_DRAFT_TOKENS,
    SPEC_NUM_DRAFTS,
    Metric,
    get_metric,
    make_token_buckets,
)
from tests.support.fake_server.stream import Stream

__all__ = ["FakeMetrics", "spec_metrics", "spec_stats"]


def spec_stats(steps: Sequence[int]) -> SpecStats:
    """Return the counts of so many steps that accepted 0, 1 ... k draft tokens."""
    k, drafts = len(steps) - 1, sum(steps)
    if not k or not drafts:
        return SpecStats()
    return SpecStats(
        num_drafts=drafts,
        num_draft_tokens=k * drafts,
        num_accepted_tokens=sum(accepted * count for accepted, count in enumerate(steps)),
        accepted_per_pos=tuple(sum(steps[position:]) for position in range(1, k + 1)),
        drafted_per_pos=(drafts,) * k,
    )


def spec_metrics(steps: Sequence[int]) -> dict[str, Any]:
    """Return what vLLM from 0.29 tells in a response about such steps (`--per-request-spec-decode-metrics summary`)."""
    stats = spec_stats(steps)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": stats.acceptance_length or 0.0,
            "draft_acceptance_rate": stats.acceptance_rate or 0.0,
            "acceptance_histogram": list(steps),
            "num_spec_steps": stats.num_drafts,
            "num_accepted_draft_tokens": stats.num_accepted_tokens,
            "num_draft_tokens": stats.num_draft_tokens,
            "num_spec_tokens": len(steps) - 1,
        }
    }


class _Histogram:
    """One histogram of the exposition."""

    def __init__(self, row: Metric, max_model_len: int, labels: str) -> None:
        self.row = row
        self.labels = labels
        self.bounds = row.buckets or make_token_buckets(max_model_len)
        shown = (*map(repr, map(float, self.bounds)), "+Inf")
        self.heads = [f'{row.name}_bucket{{{labels},le="{bound}"}}' for bound in shown]
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self) -> list[str]:
        seen = list(accumulate(self.counts))
        return [
            *(f"{head} {count}" for head, count in zip(self.heads, seen, strict=True)),
            f"{self.row.name}_count{{{self.labels}}} {seen[-1]}",
            f"{self.row.name}_sum{{{self.labels}}} {self.total}",
        ]


class FakeMetrics:
    """Plain numbers that the engine adds to, in vLLM's names when they are read."""

    def __init__(self, *, model: str, max_model_len: int, k: int) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_hits = 0
        self.steps = [0] * (k + 1)
        """How many verifications accepted 0, 1 ... k draft tokens."""
        self.finished: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        self._labels = f'model_name="{model}",engine="0"'
        rows = [row for row in METRICS if row.kind == "histogram"]
        histograms = [_Histogram(row, max_model_len, self._labels) for row in rows]
        self._histograms = {each.row.name.removeprefix("vllm:"): each for each in histograms}
        self.add_gap = self._histograms["inter_token_latency_seconds"].add

    def count_request(self, stream: Stream) -> None:
        """Count a request that has ended, as far as it came."""
        served, tokens = stream.served, stream.done
        self.finished[served.outcome] += 1
        if served.started is None or not served.chunks or served.ended is None:
            return
        first = served.chunks[0][0]
        values = {
            "time_to_first_token_seconds": first - served.arrived,
            "e2e_request_latency_seconds": served.ended - served.arrived,
            "request_queue_time_seconds": served.started - served.arrived,
            "request_inference_time_seconds": served.ended - served.started,
            "request_prefill_time_seconds": first - served.started,
            "request_decode_time_seconds": served.ended - first,
            "request_time_per_output_token_seconds": (served.ended - first) / max(1, tokens - 1),
            "request_prompt_tokens": len(stream.answer.prompt),
            "request_generation_tokens": tokens,
        }
        for name, value in values.items():
            self._histograms[name].add(value)

    def counters(self, foreign_tokens: int = 0) -> Counters:
        """Return the readings as a client of /metrics sees them."""
        return Counters(
            spec=spec_stats(self.steps),
            generation_tokens=self.generation_tokens + foreign_tokens,
            prefix_queries=self.prompt_tokens,
            prefix_hits=self.prefix_hits,
        )

    def exposition(self, foreign_tokens: int, load: ServerLoad) -> str:
        """Return the text that Prometheus scrapes."""
        lines: list[str] = []
        for row, samples in self._families(foreign_tokens, load):
            lines += _about(row)
            lines += [f"{row.sample}{{{self._labels}{more}}} {float(value)}" for more, value in samples.items()]
        for histogram in self._histograms.values():
            lines += (*_about(histogram.row), *histogram.lines())
        return "\n".join(lines) + "\n"

    def _families(self, foreign_tokens: int, load: ServerLoad) -> Iterator[tuple[Metric, dict[str, float]]]:
        """Yield counters and gauges with their values by further labels."""
        k = len(self.steps) - 1
        if k:
            spec = spec_stats(self.steps)
            yield SPEC_NUM_DRAFTS, {"": spec.num_drafts}
            yield SPEC_NUM_DRAFT_TOKENS, {"": spec.num_draft_tokens}
            yield SPEC_NUM_ACCEPTED_TOKENS, {"": spec.num_accepted_tokens}
            counts = enumerate(spec.accepted_per_pos or (0,) * k)
            yield SPEC_NUM_ACCEPTED_TOKENS_PER_POS, {f',position="{i}"': count for i, count in counts}
        readings = {
            "generation_tokens": self.generation_tokens + foreign_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prefix_cache_queries": self.prompt_tokens,
            "prefix_cache_hits": self.prefix_hits,
            "num_requests_running": load.running or 0,
            "num_requests_waiting": load.waiting or 0,
            "kv_cache_usage_perc": load.kv_usage or 0,
        }
        for name, value in readings.items():
            yield get_metric(name), {"": value}
        yield (
            get_metric("request_success"),
            {f',finished_reason="{why}"': count for why, count in self.finished.items()},
        )


def _about(row: Metric) -> tuple[str, str]:
    name = row.sample  # prometheus_client names the family of a counter with its suffix in this format
    return f"# HELP {name} {row.help}", f"# TYPE {name} {row.kind}"
