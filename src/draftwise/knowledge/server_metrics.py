"""The samples of /metrics that a measurement needs, by server: vLLM (and draftwise), SGLang, TGI, llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from draftwise.knowledge.stored import read_data

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
