"""Values of the chart of vLLM's production-stack: one engine, behind the chart's router."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from draftwise.deploying.order import Order
from draftwise.deploying.render.kubernetes import PERIOD_S, list_env, to_gib
from draftwise.deploying.render.words import dump_yaml, list_args

__all__ = ["prepare", "render"]

_SIZE, _CACHING = "tensor_parallel_size", "enable_prefix_caching"
_SWITCHES = {_CACHING: "enablePrefixCaching", "enable_chunked_prefill": "enableChunkedPrefill"}
"""Flags that the chart writes by itself, from its own keys."""


def prepare(order: Order) -> Order:
    """Return an order that says whether prefixes are cached: the chart turns that off where nobody says it."""
    return replace(order, setup=replace(order.setup, args={_CACHING: True, **order.setup.args}))


def render(order: Order) -> str:
    """Return the values for a server."""
    health = {"httpGet": {"path": "/health", "port": order.port}}
    engine = {
        "startupProbe": {
            "initialDelaySeconds": PERIOD_S,
            "periodSeconds": PERIOD_S,
            "failureThreshold": ceil(order.startup_s / PERIOD_S),
            **health,
        },
        "readinessProbe": health,
        "livenessProbe": health,
        "containerPort": order.port,
        "modelSpec": [_make_model(order)],
    }
    return dump_yaml({"servingEngineSpec": engine})


def _make_model(order: Order) -> dict[str, Any]:
    repository, _, tag = order.image.rpartition(":")
    memory = to_gib(order.host.memory_bytes + order.host.shm_bytes)
    args = dict(order.setup.args)
    size = args.get(_SIZE)
    config: dict[str, Any] = {
        key: args.pop(flag) for flag, key in _SWITCHES.items() if isinstance(args.get(flag), bool)
    }
    if isinstance(size, int) and size > 0:
        config["tensorParallelSize"] = args.pop(_SIZE)  # by which the chart knows that /dev/shm is needed
    model, *words = list_args(replace(order, setup=replace(order.setup, args=args)))
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": [order.gpu_product]}
    return {
        "name": "vllm",  # of a release of the chart, whose name tells the services apart
        "annotations": dict(order.annotations),
        "podLabels": dict(order.labels),
        "repository": repository,
        "tag": tag,
        "modelURL": model,
        "replicaCount": 1,
        "requestCPU": order.host.cpus,
        "requestMemory": memory,
        "limitMemory": memory,
        "requestGPU": order.num_gpus,
        "shmSize": to_gib(order.host.shm_bytes),
        **({"nodeSelectorTerms": [{"matchExpressions": [product]}]} if order.gpu_product else {}),
        **list_env(order),
        "vllmConfig": {**config, "extraArgs": words},
    }
