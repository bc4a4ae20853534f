"""How Prometheus finds the servers, and how the label `pool` comes to be on what it scrapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.deploy.order import Order

__all__ = ["make_pod_monitor", "make_scrape_config"]

_INTERVAL = "15s"
"""Twenty scrapes in the shortest window of the rules."""
_POOL = "__meta_kubernetes_pod_label_draftwise_dev_pool"


def make_pod_monitor(order: Order) -> dict[str, Any]:
    """Return the PodMonitor of both twins.

    `podTargetLabels` would call the pool `draftwise_dev_pool`, so that it is relabelled here.
    """
    name = {"app.kubernetes.io/name": order.service}
    relabelling = {"sourceLabels": [_POOL], "targetLabel": "pool"}
    endpoint = {"port": "http", "path": "/metrics", "interval": _INTERVAL, "relabelings": [relabelling]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": order.service, "labels": dict(name)},
        "spec": {"selector": {"matchLabels": name}, "podMetricsEndpoints": [endpoint]},
    }


def make_scrape_config(sides: Sequence[Order]) -> dict[str, Any]:
    """Return the scrape configuration of servers that are known by name and port."""
    targets = [{"targets": [f"{each.name}:{each.port}"], "labels": {"pool": each.pool}} for each in sides]
    job = {"job_name": f"draftwise-{sides[0].service}", "scrape_interval": _INTERVAL, "static_configs": targets}
    return {"scrape_configs": [job]}
