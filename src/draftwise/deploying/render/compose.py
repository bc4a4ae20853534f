"""A compose file with one service."""

from __future__ import annotations

from typing import Any

from draftwise.deploying.order import Order
from draftwise.deploying.render.words import PROGRAM, dump_yaml, list_args

__all__ = ["render"]


def render(order: Order) -> str:
    """Return the compose file of a server."""
    service: dict[str, Any] = {
        "image": order.image,
        "entrypoint": list(PROGRAM),
        "command": [_escape(word) for word in list_args(order)],
        **(
            {"environment": {name: _escape(value) for name, value in order.setup.env.items()}}
            if order.setup.env
            else {}
        ),
        "labels": {**order.labels, **{name: _escape(text) for name, text in order.annotations.items()}},
        "ports": [f"127.0.0.1:{order.port}:{order.port}"],
        "volumes": ["huggingface:/root/.cache/huggingface", "vllm:/root/.cache/vllm"],
        "shm_size": order.host.shm_bytes,
        "mem_limit": order.host.memory_bytes + order.host.shm_bytes,
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-fs", f"http://127.0.0.1:{order.port}/health"],
            "interval": "10s",
            "timeout": "5s",
            "retries": 6,
            "start_period": f"{order.startup_s}s",
        },
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [{"driver": "nvidia", "count": order.num_gpus, "capabilities": ["gpu"]}],
                }
            }
        },
    }
    return dump_yaml({"services": {order.name: service}, "volumes": {"huggingface": {}, "vllm": {}}})


def _escape(text: str) -> str:
    """Return a text in which compose fills in no variable."""
    return text.replace("$", "$$")
