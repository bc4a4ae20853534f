"""The Prometheus metrics that operators scrape from vLLM, and that `draftwise serve` exports under the same names.

The rows are in `data/metrics.json`, those of speculation first. Each was compared with the /metrics text of a running
vLLM 0.32.0. The speculative counters are the same in 0.9.2 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product, takewhile

from draftwise.knowledge.stored import read_rows


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
