"""Plain Kubernetes objects: a Deployment and a Service for each of the twins."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from draftwise.deploying.order import Order
from draftwise.deploying.render.words import PROGRAM, dump_yaml, list_args

__all__ = [
    "PERIOD_S",
    "find_lull_s",
    "list_env",
    "list_resources",
    "list_volumes",
    "make_container",
    "make_deployment",
    "make_metadata",
    "make_pod",
    "make_probes",
    "make_service",
    "render",
    "to_gib",
]

_GIB = 1 << 30
PERIOD_S = 10
"""Between two probes of a start."""
_SHORTEST_S, _LONGEST_S = 300, 3600
"""Of lulls: Kubernetes' own, and the longest that its autoscalers and Knative's take."""


def render(order: Order) -> str:
    """Return the manifest of a server."""
    return dump_yaml(make_deployment(order, order.labels), make_service(order.name, order))


def make_deployment(order: Order, selector: Mapping[str, str]) -> dict[str, Any]:
    """Return the Deployment of a server.

    Args:
        order: of the server.
        selector: labels by which it knows its pods, which they carry beside those of the order.
    """
    pod = make_pod(order, make_container(order))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": make_metadata(order),
        "spec": {
            # An autoscaler's number would be taken back by every apply.
            **({} if order.platform.scale else {"replicas": 1}),
            "progressDeadlineSeconds": order.startup_s + 60,
            # The old server goes on until the new one answers; that takes free GPUs for one more replica.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": dict(selector)},
            "template": {"metadata": {"labels": {**order.labels, **selector}}, "spec": pod},
        },
    }


def make_pod(order: Order, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod around a container."""
    pod: dict[str, Any] = {"containers": [container], "volumes": list_volumes(order)}
    return {"nodeSelector": {"nvidia.com/gpu.product": order.gpu_product}, **pod} if order.gpu_product else pod


def make_container(order: Order) -> dict[str, Any]:
    """Return the container of a server."""
    return {
        "name": "vllm",
        "image": order.image,
        "command": list(PROGRAM),
        "args": list_args(order),
        **list_env(order),
        "ports": [{"name": "http", "containerPort": order.port}],
        "resources": list_resources(order),
        **make_probes(order, port="http"),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": "/root/.cache"}],
    }


def list_env(order: Order) -> dict[str, Any]:
    """Return the field `env` of a container; nothing where there is none."""
    return (
        {"env": [{"name": name, "value": value} for name, value in order.setup.env.items()]} if order.setup.env else {}
    )


def list_resources(order: Order) -> dict[str, Any]:
    """Return what a container asks for and may take."""
    memory = to_gib(order.host.memory_bytes + order.host.shm_bytes)  # a volume in memory counts as the container's
    gpus = {"nvidia.com/gpu": str(order.num_gpus)}
    return {
        "requests": {"cpu": str(order.host.cpus), "memory": memory, **gpus},
        "limits": {"memory": memory, **gpus},
    }


def make_probes(order: Order, *, port: str | int) -> dict[str, Any]:
    """Return the probes of a container; `port` is how they name the server's."""
    health = {"httpGet": {"path": "/health", "port": port}}
    return {
        "startupProbe": health | {"periodSeconds": PERIOD_S, "failureThreshold": ceil(order.startup_s / PERIOD_S)},
        "readinessProbe": health | {"periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": health | {"periodSeconds": PERIOD_S, "timeoutSeconds": 5, "failureThreshold": 6},
    }


def list_volumes(order: Order) -> list[dict[str, Any]]:
    """Return the volumes of a pod: shared memory, and the cache of downloads and compilation."""
    return [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": to_gib(order.host.shm_bytes)}},
        {"name": "cache", "emptyDir": {}},
    ]


def make_service(name: str, order: Order, selector: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a Service that finds the pods of an order, by its labels where no others are given."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**make_metadata(order), "name": name},
        "spec": {
            "selector": dict(selector or order.labels),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def make_metadata(order: Order) -> dict[str, Any]:
    """Return the metadata of an object."""
    return {"name": order.name, "labels": dict(order.labels), "annotations": dict(order.annotations)}


def to_gib(num_bytes: int) -> str:
    """Return a size as Kubernetes writes it, in whole GiB."""
    return f"{ceil(num_bytes / _GIB)}Gi"


def find_lull_s(order: Order) -> int:
    """Return for how long fewer replicas have to do: one that took so long to come up is not given away for less."""
    return min(max(_SHORTEST_S, order.startup_s), _LONGEST_S)
