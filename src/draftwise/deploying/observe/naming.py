"""PromQL as the deployed release and its exporter need it: written here with vLLM's own names, of one service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftwise.deploying.order import ServiceOrder
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import Release, get_release

PROMETHEUS = "http://prometheus-operated.monitoring:9090"
"""Where the operator's Prometheus is reached inside of a cluster, unless it was installed otherwise."""
VLLM = "vllm:"
"""How vLLM's own /metrics begins its names; Ray's exporter writes `ray_vllm_`."""
_PREFIX = re.compile(r"[a-zA-Z_:][\w:]*", re.ASCII)
_SERIES = re.compile(rf"\b({VLLM}|draftwise:|(?=(?:up|process_start_time_seconds)\b))([\w:]+)(?:\{{([^}}]*)\}})?")
"""A name of the exporter's, of a recording rule's or of the target's own, and what it has to match."""
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_sum", "_count", "_bucket"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What a service's metrics are called."""

    release: Release
    model: str
    """The label `model_name`: the name that requests ask for."""
    service: str
    """The label `service`, which the scrape takes from the pods."""
    revisions: tuple[str, ...]
    """The label `revision` of the service and of its twin."""
    prefix: str = VLLM

    def find_missing(self, expression: str) -> str:
        """Return the first sample of an expression that the release does not export; empty for none."""
        exported = set(self._list_samples())
        names = (name for origin, name, _ in _SERIES.findall(expression) if origin == VLLM)
        return next((name for name in names if name not in exported), "")

    @property
    def matchers(self) -> tuple[str, ...]:
        """What each series has to match."""
        return f"service={json.dumps(self.service)}", f'revision=~"{"|".join(self.revisions)}"'

    def write(self, expression: str, *matchers: str) -> str:
        """Return an expression whose series are of this service, and match more labels where these are given."""

        def select(found: re.Match[str]) -> str:
            origin, name, own = found.groups()
            wanted = ",".join(filter(None, (*self.matchers, *matchers, own)))
            return f"{self.prefix if origin == VLLM else origin}{name}{{{wanted}}}"

        return _SERIES.sub(select, expression)

    def _list_samples(self) -> Iterator[str]:
        for name, row in self.release.table("metrics").items():
            yield from (name.removeprefix(VLLM) + suffix for suffix in _SUFFIXES[row["kind"]])


def name_for(order: ServiceOrder, prefix: str) -> Naming:
    """Return how the metrics of an order's server are named.

    Raises:
        InvalidSetup: no metric's name begins like that.
    """
    if not _PREFIX.fullmatch(prefix):
        raise refusal("metrics-prefix", prefix=prefix)
    served = order.setup.args.get("served_model_name")
    names = served if isinstance(served, list | tuple) else [served]
    release = get_release(order.setup.engine_version)
    return Naming(
        release=release,
        model=str(names[0]) if names and names[0] else order.setup.target,
        service=order.service,
        revisions=(order.revision, order.go_back().revision),
        prefix=prefix,
    )
