"""Ray Serve LLM on KubeRay: a RayService whose application starts one engine of vLLM.

Ray passes engine arguments by their field names, the config as a mapping. It names the model by itself, and brings the
workers up by itself (ray 2.60, llm/_internal/serve/engines/vllm/vllm_models.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.deploying.order import Order
from draftwise.deploying.render.kubernetes import list_resources, make_metadata, make_pod
from draftwise.deploying.render.words import dump_yaml, list_args

__all__ = ["METRICS_PORT", "METRICS_PREFIX", "prepare", "render"]

METRICS_PORT = 8080
"""Where Ray's agent on every node shows what the engines count."""
METRICS_PREFIX = "ray_vllm_"
"""Ray takes no colons in names, and puts its own in front."""
_PORT = 8000
"""Of Ray Serve's proxy."""
_OTHER_IMAGE = "vllm/vllm-openai"
_RAY = re.compile(r".*/ray-llm:(\d+\.\d+\.\d+)")
_NAMES, _EXECUTOR = "served_model_name", "distributed_executor_backend"


def prepare(order: Order) -> Order:
    """Return an order that names the model once, as Ray does.

    Raises:
        InvalidSetup: its image is not one with Ray.
    """
    if order.image.rpartition(":")[0] == _OTHER_IMAGE:
        raise InvalidSetup.because(
            "image-not-given",
            f"Ray Serve runs in an image with Ray; which of them holds vLLM {order.setup.engine_version} is not known "
            "here.",
            where="--image",
            fix="Name it, e.g. --image rayproject/ray-llm:TAG, or one made from it with that release of vLLM.",
        )
    args = dict(order.setup.args)
    if args.get(_NAMES) == [order.setup.target]:
        del args[_NAMES]
    return replace(order, setup=replace(order.setup, args=args))


def render(order: Order) -> str:
    """Return the manifest of a server.

    Raises:
        InvalidSetup: Ray does not take an argument.
    """
    application = {
        "name": order.service,
        "import_path": "ray.serve.llm:build_openai_app",
        "route_prefix": "/",
        "args": {"llm_configs": [_make_config(order)]},
    }
    spec = {
        "serveConfigV2": dump_yaml({"applications": [application]}),
        "rayClusterConfig": _make_cluster(order),
    }
    metadata = make_metadata(order)
    return dump_yaml({"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": spec})


def _make_config(order: Order) -> dict[str, Any]:
    _refuse(order)
    setup = order.setup
    args = dict(setup.args)
    names = args.pop(_NAMES, [setup.target])
    spec = {} if setup.spec is None else {"speculative_config": setup.spec.to_dict()}
    return {
        "model_loading_config": {"model_id": names[0], "model_source": list_args(order)[0]},
        "engine_kwargs": {**args, **spec},
        **({"runtime_env": {"env_vars": dict(setup.env)}} if setup.env else {}),
        "deployment_config": {"num_replicas": 1},
        "log_engine_metrics": True,
    }


def _refuse(order: Order) -> None:
    """Raise for arguments that Ray refuses, or that are none of the engine's."""
    args = order.setup.args
    names = args.get(_NAMES, [order.setup.target])
    refused = {
        "it names the model once": not (isinstance(names, list | tuple) and len(names) == 1 and names[0]),
        "it brings the workers up itself": args.get(_EXECUTOR, "ray") != "ray",
        "it reports the metrics, for which statistics are needed": args.get("disable_log_stats") is True,
        "it takes arguments of the engine only": bool(order.setup.extra_args),
    }
    for reason in (reason for reason, holds in refused.items() if holds):
        raise InvalidSetup.because(
            "argument-not-taken",
            f"Ray Serve refuses an argument of the setup: {reason}.",
            fix="Leave the argument out, or use --to kubernetes.",
        )


def _make_cluster(order: Order) -> dict[str, Any]:
    head = {
        "name": "ray-head",
        "image": order.image,
        "ports": [
            {"name": "gcs", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
            {"name": "client", "containerPort": 10001},
            {"name": "serve", "containerPort": _PORT},
        ],
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
    }
    worker = {
        "name": "ray-worker",
        "image": order.image,
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": list_resources(order),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "cache", "mountPath": "/home/ray/.cache"}],
    }
    version = _RAY.match(order.image)
    return {
        **({"rayVersion": version[1]} if version else {}),
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
            "template": {"spec": {"containers": [head]}},
        },
        "workerGroupSpecs": [
            {
                "groupName": "gpu",
                "replicas": 1,
                "minReplicas": 1,
                "maxReplicas": 1,
                "rayStartParams": {"num-gpus": str(order.num_gpus)},
                "template": {"metadata": {"labels": dict(order.labels)}, "spec": make_pod(order, worker)},
            }
        ],
    }
