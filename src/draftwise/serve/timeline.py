"""When one request was queued, scheduled and answered, for the latency histograms."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.engine.outputs import Delta
from draftwise.engine.step.sequence import EngineRequest
from draftwise.serve.metrics import ServerMetrics

__all__ = ["Timeline"]


@dataclass(slots=True)
class _Completion:
    first: float | None = None
    last: float = 0.0
    num_tokens: int = 0


class Timeline:
    """Timestamps of a request and of each of its completions, in seconds on one monotonic clock.

    Intervals are vLLM's (v1/metrics/stats.py): queue = queued to scheduled, prefill = scheduled to first token,
    decode = first to last token, inference = scheduled to last token; an inter-token latency is the time between
    two increments, whatever their number of tokens.
    """

    def __init__(self, metrics: ServerMetrics, request: EngineRequest, *, arrived: float, queued: float) -> None:
        self._metrics = metrics
        self._request = request
        self._arrived = arrived
        self._queued = queued
        self._scheduled: float | None = None
        self._completions = [_Completion() for _ in range(request.params.n)]
        metrics.observe("request_params_n", request.params.n)

    def note_delta(self, delta: Delta, *, began: float, now: float) -> None:
        """Record an increment from a step with these times: its tokens, and the end of the completion."""
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
        metrics.observe("request_prompt_tokens", len(self._request.prompt_token_ids))
        metrics.observe("request_generation_tokens", completion.num_tokens)
        if self._request.params.max_tokens is not None:
            metrics.observe("request_params_max_tokens", self._request.params.max_tokens)
