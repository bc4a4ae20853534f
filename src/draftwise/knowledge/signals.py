"""The production quantities that decisions refer to, and the metrics behind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from draftwise.knowledge.metrics import SPEC_NUM_ACCEPTED_TOKENS, Metric, get_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSignal:
    """A quantity computed from a server's metrics."""

    name: str
    """Name with its unit, as in `Rollback.metric`."""
    metrics: tuple[Metric, ...]
    """Metrics that it is computed from."""
    definition: str
    promql: str
    """The quantity in PromQL, by model; per server if it grows with the number of servers."""
    quantile: float | None = None
    """Quantile of a histogram."""


_WINDOW = "5m"
"""Long enough for twenty scrapes at 15 s, short enough that a load that comes and goes is seen."""


def _rate(metric: Metric, *, by: str = "model_name", suffix: str = "") -> str:
    """Return the growth of a counter per second, summed after `rate`, which knows restarts only series by series."""
    return f"sum by ({by}) (rate({metric.sample}{suffix}[{_WINDOW}]))"


def _average_of_servers(expression: str) -> str:
    """Return what one server has on average. The expression keeps the label `instance`."""
    return f"avg by (model_name) ({expression})"


def _tokens_per_step(generated: Metric, accepted: Metric) -> str:
    """Return generated tokens over steps. An idle server has none of either, and no value."""
    return f"{_rate(generated)} / ({_rate(generated)} - {_rate(accepted)} > 0)"


_PER_SERVER = "model_name, instance"
_GENERATED = get_metric("generation_tokens")
_FIRST_TOKEN = get_metric("time_to_first_token_seconds")
_RUNNING, _WAITING = get_metric("num_requests_running"), get_metric("num_requests_waiting")
_FINISHED = get_metric("request_success")

TOKENS_PER_STEP = MetricSignal(
    name="tokens_per_step",
    metrics=(_GENERATED, SPEC_NUM_ACCEPTED_TOKENS),
    promql=_tokens_per_step(_GENERATED, SPEC_NUM_ACCEPTED_TOKENS),
    definition=(
        "Tokens per step = generation_tokens / (generation_tokens - spec_decode_num_accepted_tokens), from the growth "
        "of the server's counters: what one forward pass of the target emits, steps without a draft included."
    ),
)
OUTPUT_TOKENS_PER_S = MetricSignal(
    name="output_tokens_per_s",
    metrics=(_GENERATED,),
    promql=_average_of_servers(_rate(_GENERATED, by=_PER_SERVER)),
    definition="Growth of generation_tokens per second.",
)
TTFT_P99_S = MetricSignal(
    name="ttft_p99_s",
    metrics=(_FIRST_TOKEN,),
    promql=f"histogram_quantile(0.99, {_rate(_FIRST_TOKEN, by='model_name, le', suffix='_bucket')})",
    definition="P99 of the time to the first token.",
    quantile=0.99,
)
_REQUESTS_IN_FLIGHT = MetricSignal(
    name="requests_in_flight",
    metrics=(_RUNNING, _WAITING),
    promql=_average_of_servers(
        " + ".join(f"sum by ({_PER_SERVER}) (avg_over_time({each.sample}[{_WINDOW}]))" for each in (_RUNNING, _WAITING))
    ),
    definition="Requests that are running or waiting.",
)
_REQUESTS_PER_S = MetricSignal(
    name="requests_per_s",
    metrics=(_FINISHED,),
    promql=_average_of_servers(_rate(_FINISHED, by=_PER_SERVER)),
    definition="Growth of request_success per second: arrivals, short of overload.",
)

LOAD_SIGNALS: Mapping[str, MetricSignal] = MappingProxyType(
    {"concurrency": _REQUESTS_IN_FLIGHT, "rate": _REQUESTS_PER_S}
)
"""Quantity for each axis of load (`Condition.place`)."""
SIGNALS: tuple[MetricSignal, ...] = (TOKENS_PER_STEP, OUTPUT_TOKENS_PER_S, TTFT_P99_S, *LOAD_SIGNALS.values())


def get_signal(name: str) -> MetricSignal:
    """Return a signal by its name.

    Raises:
        KeyError: no such signal.
    """
    return {signal.name: signal for signal in SIGNALS}[name]
