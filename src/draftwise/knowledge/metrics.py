"""The Prometheus metrics that operators scrape from vLLM, and those that a measurement needs, by server.

The rows are in `data/metrics.json`, those of speculation first. Each was compared with the /metrics text of a running
vLLM 0.32.0. The speculative counters are the same in 0.9.2 to 0.33.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSample:
    """What a sample of a page means."""

    reading: str
    """Field of SpecStats, Counters, ServerLoad, Sums or `exposition.EngineReading` that it holds, or `verifications`
    (steps of requests that verified a draft)."""
    rank: tuple[int, str]
    """The lowest counts where a page has several names for a reading: a release that renames a metric keeps the old
    name for a while, and recording rules add spellings."""
    server: str
    """Engine that exports it; empty for samples of every HTTP server."""
    is_sparse: bool = False
    """Whether it appears from its first increment on only, as in Ray (vllm 0.33.0 v1/metrics/ray_wrappers.py)."""


_SEPARATORS = re.compile(r"_(?:dot|2e|3a)_|[\W_]+")
"""Separators of words, also those that Prometheus 3 escapes."""
_SUFFIXES = re.compile(r"_total(?=_|$)|(?<=_perc)_ratio$")
"""Suffixes that OpenMetrics, collectors and recording rules add and take away."""


@cache
def read_server_metrics() -> Mapping[str, KnownSample]:
    """Return the meaning of each sample, by the name that its server gives it."""
    return MappingProxyType(
        {
            row["sample"]: KnownSample(reading=row["reading"], rank=(rank, ""), server=row["server"])
            for rank, row in enumerate(read_data("server_metrics")["rows"])
        }
    )


@lru_cache(maxsize=65536)
def find_sample(name: str) -> KnownSample | None:
    """Return the meaning of a sample in any spelling: with colons, dots or underscores, prefixes, with or without
    `_total`. None if it is not known."""
    known = read_server_metrics().get(name)
    if known is None and (spelled := _spellings().get(_fold(name))) is not None:
        is_sparse = "ray_vllm" in _SEPARATORS.sub("_", name)
        known = replace(spelled, rank=(spelled.rank[0], name), is_sparse=is_sparse)
    return known


@cache
def _spellings() -> Mapping[str, KnownSample]:
    return {_fold(name): known for name, known in read_server_metrics().items() if known.server}


def _fold(name: str) -> str:
    """Return the part of a name that all of its spellings share, from the engine's own prefix on."""
    words = _SUFFIXES.sub("", _SEPARATORS.sub("_", name))
    found = _engines().search(words)
    return words[found.start(1) :] if found else ""


@cache
def _engines() -> re.Pattern[str]:
    """Return the pattern of the last engine's prefix in a name: exporters put their own in front."""
    prefixes = {_SEPARATORS.split(name)[0] for name, known in read_server_metrics().items() if known.server}
    return re.compile(rf"(?:^|.*_)((?:{'|'.join(sorted(prefixes))})_)")


@cache
def counts_drafts(server: str) -> bool:
    """Return whether an engine's /metrics has draft counters if, and only if, it was started to speculate."""
    return server in read_data("server_metrics")["absence_means_off"]
