"""The Prometheus metrics that operators scrape from vLLM, and that `draftwise serve` exports under the same names.

Every row was compared with the /metrics text of a running vLLM 0.32.0; the speculative counters are the same in
0.9.2 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product, takewhile

_LOGGERS = "vllm 0.32.0 v1/metrics/loggers.py"
_SPEC = "vllm 0.9.2..0.33.0 v1/spec_decode/metrics.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family."""

    name: str
    """vLLM's declared name, without the suffixes of the exposition."""
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ("model_name", "engine")
    buckets: tuple[float, ...] | None = None
    """Upper bounds of a histogram; None with a histogram stands for `make_token_buckets` of the context length."""
    source: str = _LOGGERS

    @property
    def sample(self) -> str:
        """Name of the sample in the exposition: counters gain `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def make_token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return vLLM's bounds for token counts: 1, 2, 5, 10 ... up to the context length."""

    def series() -> Iterator[float]:
        for exponent, mantissa in product(range(64), (1, 2, 5)):
            yield float(mantissa * 10**exponent)

    return tuple(takewhile(lambda bound: bound <= max_model_len, series()))


_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_N = (1, 2, 5, 10, 20)

SPEC_NUM_DRAFTS = Metric(
    name="vllm:spec_decode_num_drafts", kind="counter", help="Number of spec decoding drafts.", source=_SPEC
)
SPEC_NUM_DRAFT_TOKENS = Metric(
    name="vllm:spec_decode_num_draft_tokens", kind="counter", help="Number of draft tokens.", source=_SPEC
)
SPEC_NUM_ACCEPTED_TOKENS = Metric(
    name="vllm:spec_decode_num_accepted_tokens", kind="counter", help="Number of accepted tokens.", source=_SPEC
)
SPEC_NUM_ACCEPTED_TOKENS_PER_POS = Metric(
    name="vllm:spec_decode_num_accepted_tokens_per_pos",
    kind="counter",
    help="Accepted tokens per draft position.",
    labels=("model_name", "engine", "position"),
    source=_SPEC,
)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=f"vllm:{name}", kind="counter", help=text, labels=("model_name", "engine", *labels))


def _gauge(name: str, text: str) -> Metric:
    return Metric(name=f"vllm:{name}", kind="gauge", help=text)


def _histogram(name: str, text: str, buckets: tuple[float, ...] | None) -> Metric:
    return Metric(name=f"vllm:{name}", kind="histogram", help=text, buckets=buckets)


METRICS: tuple[Metric, ...] = (
    SPEC_NUM_DRAFTS,
    SPEC_NUM_DRAFT_TOKENS,
    SPEC_NUM_ACCEPTED_TOKENS,
    SPEC_NUM_ACCEPTED_TOKENS_PER_POS,
    _gauge("num_requests_running", "Number of requests in model execution batches."),
    _gauge("num_requests_waiting", "Number of requests waiting to be processed."),
    _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    _counter("prompt_tokens", "Number of prefill tokens processed."),
    _counter("generation_tokens", "Number of generation tokens processed."),
    _counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
    _counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
    _counter("num_preemptions", "Cumulative number of preemption from the engine."),
    _counter("request_success", "Count of successfully processed requests.", "finished_reason"),
    Metric(
        name="vllm:admission_rejections",
        kind="counter",
        help="Number of admission attempts rejected by a queue limit, by reason.",
        labels=("model_name", "reason"),
    ),
    _histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_S),
    _histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_S),
    _histogram(
        "request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", _TOKEN_S
    ),
    _histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST_S),
    _histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _REQUEST_S),
    _histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", _REQUEST_S),
    _histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", _REQUEST_S),
    _histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", _REQUEST_S),
    _histogram("request_prompt_tokens", "Number of prefill tokens processed.", None),
    _histogram("request_generation_tokens", "Number of generation tokens processed.", None),
    _histogram("request_params_n", "Histogram of the n request parameter.", _N),
    _histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", None),
)


_ACCEPTED, _PROPOSED, _DRAFTS = (
    f"rate({metric.sample}[5m])" for metric in (SPEC_NUM_ACCEPTED_TOKENS, SPEC_NUM_DRAFT_TOKENS, SPEC_NUM_DRAFTS)
)
OLD_METRICS: Mapping[str, str] = {
    "vllm:spec_decode_draft_acceptance_rate": f"{_ACCEPTED} / {_PROPOSED}",
    "vllm:spec_decode_num_emitted_tokens": f"{_ACCEPTED} + {_DRAFTS}",
    "vllm:spec_decode_efficiency": "",
}
"""Metrics of the V0 engine that guides still name (vllm 0.8 engine/metrics.py) -> what takes their place in PromQL;
empty where nothing does."""


def get_metric(name: str) -> Metric:
    """Return the row of a metric by its name, with or without the `vllm:` prefix.

    Raises:
        KeyError: there is no such row.
    """
    wanted = f"vllm:{name.removeprefix('vllm:')}"
    found = next((metric for metric in METRICS if metric.name == wanted), None)
    if found is None:
        raise KeyError(name)
    return found
