"""What production is watched by: quantities that decisions name, and the metrics that each is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from draftwise.facts.metrics import SPEC_NUM_ACCEPTED_TOKENS, Metric, get_metric

__all__ = [
    "LOAD_SIGNALS",
    "OUTPUT_TOKENS_PER_S",
    "SIGNALS",
    "TOKENS_PER_STEP",
    "TTFT_P99_S",
    "Signal",
    "get_signal",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A quantity that follows from a server's metrics."""

    name: str
    """With its unit, as `Rollback.metric` has it."""
    metrics: tuple[Metric, ...]
    """Those it is made of."""
    definition: str
    quantile: float | None = None
    """Of a histogram."""


TOKENS_PER_STEP = Signal(
    name="tokens_per_step",
    metrics=(get_metric("generation_tokens"), SPEC_NUM_ACCEPTED_TOKENS),
    definition=(
        "Tokens per step = generation_tokens / (generation_tokens - spec_decode_num_accepted_tokens), from the growth "
        "of the server's counters: what one forward pass of the target emits, steps without a draft included."
    ),
)
OUTPUT_TOKENS_PER_S = Signal(
    name="output_tokens_per_s",
    metrics=(get_metric("generation_tokens"),),
    definition="Growth of generation_tokens per second.",
)
TTFT_P99_S = Signal(
    name="ttft_p99_s",
    metrics=(get_metric("time_to_first_token_seconds"),),
    definition="P99 of the time to the first token.",
    quantile=0.99,
)
_REQUESTS_IN_FLIGHT = Signal(
    name="requests_in_flight",
    metrics=(get_metric("num_requests_running"), get_metric("num_requests_waiting")),
    definition="Requests that are running or waiting.",
)
_REQUESTS_PER_S = Signal(
    name="requests_per_s",
    metrics=(get_metric("request_success"),),
    definition="Growth of request_success per second: arrivals, short of overload.",
)

LOAD_SIGNALS: Mapping[str, Signal] = MappingProxyType({"concurrency": _REQUESTS_IN_FLIGHT, "rate": _REQUESTS_PER_S})
"""What stands for each axis of load (`Condition.place`)."""
SIGNALS: tuple[Signal, ...] = (TOKENS_PER_STEP, OUTPUT_TOKENS_PER_S, TTFT_P99_S, *LOAD_SIGNALS.values())


def get_signal(name: str) -> Signal:
    """Return the signal of a name.

    Raises:
        KeyError: there is none.
    """
    return {signal.name: signal for signal in SIGNALS}[name]
