"""The samples of /metrics that a measurement needs, by server: vLLM (and draftwise), SGLang, TGI, llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from draftwise.facts.stored import read_data

__all__ = ["CACHE_CONFIG", "MetricMeaning", "counts_drafts", "get_server", "read_server_metrics"]

CACHE_CONFIG = "vllm:cache_config_info"
"""A gauge that is always 1 and whose labels are vLLM's cache config (vllm 0.9.2..0.33.0 v1/metrics/loggers.py;
`kv_cache_size_tokens` is among them from 0.24.0 on)."""

MetricMeaning = tuple[str, int]
"""The field of SpecStats, Counters or ServerLoad that a sample holds, and its rank: if one exposition has two names for
the same field (a release that renames a metric keeps the old name for a while), the lower rank counts."""


@cache
def read_server_metrics() -> Mapping[str, MetricMeaning]:
    """Return the meaning of each sample, by its name."""
    rows = read_data("server_metrics")["rows"]
    return MappingProxyType({row["sample"]: (row["reading"], rank) for rank, row in enumerate(rows)})


def get_server(sample: str) -> str:
    """Return the engine that exports a sample of `read_server_metrics`."""
    return _servers()[sample]


def counts_drafts(server: str) -> bool:
    """Return whether an engine's /metrics counts drafts, so that a server that speculates shows them there."""
    meanings = read_server_metrics().items()
    return any(reading == "num_drafts" and get_server(sample) == server for sample, (reading, _) in meanings)


@cache
def _servers() -> Mapping[str, str]:
    return MappingProxyType({row["sample"]: row["server"] for row in read_data("server_metrics")["rows"]})
