"""Collects the metrics of `knowledge.metrics`: engine counters at scrape time, request histograms as requests end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from draftwise.engine.engine_outputs import Delta, EngineStats
from draftwise.knowledge.metrics import METRICS, SPEC_NUM_ACCEPTED_TOKENS_PER_POS, get_metric, make_token_buckets
from draftwise.serve.channel import PackedRequest

FINISH_REASONS = ("stop", "length", "abort", "error")


class ServerMetrics:
    """The metrics of one server, in a separate registry.

    `k` is the number of draft positions. None: no speculation, and the speculative counters are absent, as in vLLM.
    Otherwise, they start at 0.
    """

    def __init__(
        self, *, model_name: str, max_model_len: int, k: int | None, read_stats: Callable[[], EngineStats]
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # as vLLM: the start of the process tells roll-outs and restarts
        self._registry.register(_EngineCollector(model_name, k, read_stats))
        self._histograms = {
            row.name: Histogram(
                row.name,
                row.help,
                row.labels,
                buckets=make_token_buckets(max_model_len) if row.buckets is None else row.buckets,
                registry=self._registry,
            ).labels(model_name=model_name, engine="0")
            for row in METRICS
            if row.kind == "histogram"
        }
        success, rejected = (get_metric(name) for name in ("request_success", "admission_rejections"))
        counter = Counter(success.name, success.help, success.labels, registry=self._registry)
        self._finished = {
            reason: counter.labels(model_name=model_name, engine="0", finished_reason=reason)
            for reason in FINISH_REASONS
        }
        counter = Counter(rejected.name, rejected.help, rejected.labels, registry=self._registry)
        self._rejected = counter.labels(model_name=model_name, reason="max_num_queued_reqs")

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram, named without the `vllm:` prefix."""
        self._histograms[f"vllm:{name}"].observe(value)

    def count_finished(self, reason: str, number: int = 1) -> None:
        """Count finished completions."""
        self._finished[reason].inc(number)

    def count_rejected(self) -> None:
        """Count a request refused because the queue was full."""
        self._rejected.inc()

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)


class _EngineCollector:
    """Turns the engine's latest snapshot into samples."""

    def __init__(self, model_name: str, k: int | None, read_stats: Callable[[], EngineStats]) -> None:
        self._labels = [model_name, "0"]
        self._k = k
        self._read_stats = read_stats
        self._created = time.time()

    def collect(self) -> Iterator[Metric]:
        stats = self._read_stats()
        for name, value in stats.readings(speculates=self._k is not None).items():
            row = get_metric(name)
            family: Any = GaugeMetricFamily if row.kind == "gauge" else CounterMetricFamily
            metric = family(row.name, row.help, labels=row.labels)
            metric.add_metric(self._labels, value, **({} if row.kind == "gauge" else {"created": self._created}))
            yield metric
        if self._k is not None:
            yield self._per_position(self._k, stats.spec.accepted_per_pos)

    def _per_position(self, k: int, accepted_per_pos: tuple[int, ...]) -> Metric:
        row = SPEC_NUM_ACCEPTED_TOKENS_PER_POS
        counter = CounterMetricFamily(row.name, row.help, labels=row.labels)
        for position in range(max(k, len(accepted_per_pos))):
            accepted = accepted_per_pos[position] if position < len(accepted_per_pos) else 0
            counter.add_metric([*self._labels, str(position)], accepted, created=self._created)
        return counter


@dataclass(slots=True)
class _Completion:
    first: float | None = None
    last: float = 0.0
    num_tokens: int = 0


class Timeline:
    """Timestamps of a request and its completions, in seconds on one monotonic clock.

    Intervals are vLLM's (v1/metrics/stats.py): queue = queued to scheduled, prefill = scheduled to first token,
    decode = first to last token, inference = scheduled to last token; an inter-token latency is the time between
    two increments, whatever their number of tokens.
    """

    def __init__(self, metrics: ServerMetrics, request: PackedRequest, *, arrived: float, queued: float) -> None:
        self._metrics = metrics
        self._request = request
        self._arrived = arrived
        self._queued = queued
        self._scheduled: float | None = None
        self._completions = [_Completion() for _ in range(request.n)]
        metrics.observe("request_params_n", request.n)

    def note_delta(self, delta: Delta, *, began: float, now: float) -> None:
        """Record an increment of a step that began at `began` and ended at `now`."""
        if self._scheduled is None:
            self._scheduled = began if delta.scheduled_s is None else delta.scheduled_s
        completion = self._completions[delta.index]
        if delta.token_ids:
            if completion.first is None:
                completion.first = now
                self._metrics.observe("time_to_first_token_seconds", now - self._arrived)
            else:
                self._metrics.observe("inter_token_latency_seconds", now - completion.last)
            completion.last = now
            completion.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._finish(completion, delta.finish_reason, now)

    def _finish(self, completion: _Completion, reason: str, now: float) -> None:
        metrics, scheduled = self._metrics, self._scheduled
        metrics.count_finished(reason)
        if completion.first is None or scheduled is None:
            return
        decode_s = completion.last - completion.first
        per_token_s = decode_s / (completion.num_tokens - 1) if completion.num_tokens > 1 else 0.0
        metrics.observe("e2e_request_latency_seconds", now - self._arrived)
        metrics.observe("request_queue_time_seconds", scheduled - self._queued)
        metrics.observe("request_prefill_time_seconds", completion.first - scheduled)
        metrics.observe("request_decode_time_seconds", decode_s)
        metrics.observe("request_inference_time_seconds", completion.last - scheduled)
        metrics.observe("request_time_per_output_token_seconds", per_token_s)
        metrics.observe("request_prompt_tokens", self._request.num_prompt_tokens)
        metrics.observe("request_generation_tokens", completion.num_tokens)
        if self._request.max_tokens is not None:
            metrics.observe("request_params_max_tokens", self._request.max_tokens)
