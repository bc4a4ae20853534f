"""How Prometheus finds the servers, and how the label `pool` comes to be on what it scrapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwise.deploying.order import Order

__all__ = ["make_pod_monitor", "make_scrape_config"]

_INTERVAL = "15s"
"""Twenty scrapes in the shortest window of the rules."""
_POD = "__meta_kubernetes_pod_"


def make_pod_monitor(order: Order, port: int) -> dict[str, Any]:
    """Return the PodMonitor of both twins.

    Platforms call the port of the metrics otherwise, so that it is known by its number, among those of proxies.
    `podTargetLabels` would call the pool `draftwise_dev_pool`.
    """
    name = {"app.kubernetes.io/name": order.service}
    relabellings = [
        {"sourceLabels": [f"{_POD}container_port_number"], "regex": str(port), "action": "keep"},
        {"sourceLabels": [f"{_POD}label_draftwise_dev_pool"], "targetLabel": "pool"},
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": order.service, "labels": dict(name)},
        "spec": {
            "selector": {"matchLabels": name},
            "podMetricsEndpoints": [{"path": "/metrics", "interval": _INTERVAL, "relabelings": relabellings}],
        },
    }


def make_scrape_config(sides: Sequence[Order]) -> dict[str, Any]:
    """Return the scrape configuration of servers that are known by name and port."""
    targets = [{"targets": [f"{each.name}:{each.port}"], "labels": {"pool": each.pool}} for each in sides]
    job = {"job_name": f"draftwise-{sides[0].service}", "scrape_interval": _INTERVAL, "static_configs": targets}
    return {"scrape_configs": [job]}
