"""The Prometheus metrics that operators scrape from vLLM, and those that a measurement needs, by server.

The rows are in `data/metrics.json`, those of speculation first. Each was compared with the /metrics text of a running
vLLM 0.32.0. The speculative counters are the same in 0.9.2 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product, takewhile
from types import MappingProxyType

from draftwise.knowledge.stored import read_data, read_rows


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
    """Upper bounds of a histogram; None in a histogram means `make_token_buckets` of the context length."""
    source: str

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


METRICS: tuple[Metric, ...] = tuple(Metric(**row) for row in read_rows("metrics"))
SPEC_NUM_DRAFTS, SPEC_NUM_DRAFT_TOKENS, SPEC_NUM_ACCEPTED_TOKENS, SPEC_NUM_ACCEPTED_TOKENS_PER_POS = METRICS[:4]

_ACCEPTED, _PROPOSED, _DRAFTS = (
    f"rate({metric.sample}[5m])" for metric in (SPEC_NUM_ACCEPTED_TOKENS, SPEC_NUM_DRAFT_TOKENS, SPEC_NUM_DRAFTS)
)
OLD_METRICS: Mapping[str, str] = {
    "vllm:spec_decode_draft_acceptance_rate": f"{_ACCEPTED} / {_PROPOSED}",
    "vllm:spec_decode_num_emitted_tokens": f"{_ACCEPTED} + {_DRAFTS}",
    "vllm:spec_decode_efficiency": "",
}
"""Metrics of the V0 engine that guides still name (vllm 0.8 engine/metrics.py) -> what replaces them in PromQL;
empty if nothing does."""


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


VLLM = "vllm:"
"""Prefix of vLLM's metrics."""
CACHE_CONFIG = "vllm:cache_config_info"
"""A gauge that is always 1 and whose labels are vLLM's cache config (vllm 0.9.2..0.33.0 v1/metrics/loggers.py;
`kv_cache_size_tokens` is among them from 0.24.0 on)."""

MetricMeaning = tuple[str, int]
"""The field of SpecStats, Counters, ServerLoad, Sums or `exposition.EngineReading` that a sample holds, or
`verifications` (steps of requests that verified a draft), and its rank:
if one exposition has two names for the same field (a release that renames a metric keeps the old name for a while), the
lower rank counts."""
_RENAMING_PREFIXES = ("vllm_", "ray_vllm_")
"""Exporters that know no colon in names: OpenTelemetry's, and Ray's, which puts its own name in front
(vllm 0.33.0 v1/metrics/ray_wrappers.py)."""
_SPELLINGS = 1 + 2 * len(_RENAMING_PREFIXES)


@cache
def read_server_metrics() -> Mapping[str, MetricMeaning]:
    """Return the meaning of each sample, by its name."""
    rows = enumerate(read_data("server_metrics")["rows"])
    return MappingProxyType(
        {
            name: (row["reading"], rank * _SPELLINGS + spelling)
            for rank, row in rows
            for spelling, name in enumerate(_spell(row["sample"]))
        }
    )


def _spell(sample: str) -> Iterator[str]:
    """Yield a sample's name, and what exporters in between make of it. Some leave out that it is a total."""
    yield sample
    if sample.startswith(VLLM):
        for prefix in _RENAMING_PREFIXES:
            name = prefix + sample.removeprefix(VLLM)
            yield from dict.fromkeys((name, name.removesuffix("_total")))


def is_renamed(sample: str) -> bool:
    """Return whether an exporter has renamed a sample of `read_server_metrics`."""
    return sample.startswith(_RENAMING_PREFIXES)


def get_server(sample: str) -> str:
    """Return the engine that exports a sample of `read_server_metrics`."""
    return _servers()[sample]


@cache
def counts_drafts(server: str) -> bool:
    """Return whether an engine's /metrics has draft counters if, and only if, it was started to speculate."""
    return server in read_data("server_metrics")["absence_means_off"]


@cache
def _servers() -> Mapping[str, str]:
    rows = read_data("server_metrics")["rows"]
    return MappingProxyType({name: row["server"] for row in rows for name in _spell(row["sample"])})
