"""Adapts PromQL with vLLM's own names to the deployed release, its exporter and one service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from draftwise.deploying.order import ServiceOrder
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import Release, get_release

PROMETHEUS = "http://prometheus-operated.monitoring:9090"
"""Default address of the Prometheus Operator's server inside a cluster."""
VLLM = "vllm:"
"""Prefix of vLLM's own metrics; Ray's exporter writes `ray_vllm_`."""
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
    """Names and labels of a service's metrics."""

    release: Release
    model: str
    """Label `model_name`: the model name in requests."""
    service: str
    """The label `service`, which the scrape takes from the pods."""
    revisions: tuple[str, ...]
    """The label `revision` of the service and of its twin."""
    prefix: str = VLLM

    def find_missing(self, expression: str) -> str:
        """Return the first sample in an expression that the release does not export; empty if it exports all."""
        exported = set(self._list_samples())
        names = (name for origin, name, _ in _SERIES.findall(expression) if origin == VLLM)
        return next((name for name in names if name not in exported), "")

    @property
    def matchers(self) -> tuple[str, ...]:
        """Label matchers of each series."""
        return f"service={json.dumps(self.service)}", f'revision=~"{"|".join(self.revisions)}"'

    def write(self, expression: str, *matchers: str) -> str:
        """Return an expression restricted to this service and to further label matchers."""

        def select(found: re.Match[str]) -> str:
            origin, name, own = found.groups()
            wanted = ",".join(filter(None, (*self.matchers, *matchers, own)))
            return f"{self.prefix if origin == VLLM else origin}{name}{{{wanted}}}"

        return _SERIES.sub(select, expression)

    def _list_samples(self) -> Iterator[str]:
        for name, row in self.release.table("metrics").items():
            yield from (name.removeprefix(VLLM) + suffix for suffix in _SUFFIXES[row["kind"]])


def name_for(order: ServiceOrder, prefix: str) -> Naming:
    """Return the metric names and labels of an order's server.

    Raises:
        InvalidSetup: the prefix is not valid in a metric name.
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
