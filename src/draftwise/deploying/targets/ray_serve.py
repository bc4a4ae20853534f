"""Ray Serve LLM on KubeRay: a RayService whose application starts one engine of vLLM.

Ray passes engine arguments by their field names, and the config as a mapping. It names the model and starts the workers
itself (ray 2.60, llm/_internal/serve/engines/vllm/vllm_models.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import dump_yaml, list_args
from draftwise.knowledge.messages import refusal

_OTHER_IMAGE = "vllm/vllm-openai"
_RAY = re.compile(r".*/ray-llm:(\d+\.\d+\.\d+)")
_NAMES, _EXECUTOR = "served_model_name", "distributed_executor_backend"


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return an order that names the model once, as Ray does."""
    if order.image.rpartition(":")[0] == _OTHER_IMAGE:
        raise refusal("image-not-given", engine_version=order.setup.engine_version)
    args = dict(order.setup.args)
    if args.get(_NAMES) == [order.setup.target]:
        del args[_NAMES]
    return replace(order, setup=replace(order.setup, args=args))


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    application = {
        "name": order.service,
        "import_path": "ray.serve.llm:build_openai_app",
        "route_prefix": "/",
        "args": {"llm_configs": [_make_config(order)]},
    }
    version = _RAY.match(order.image)
    return {"application": dump_yaml({"applications": [application]}), "ray_version": version[1] if version else None}


def _make_config(order: ServiceOrder) -> dict[str, Any]:
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


def _refuse(order: ServiceOrder) -> None:
    """Raise for arguments that Ray refuses or the engine does not have."""
    args = order.setup.args
    names = args.get(_NAMES, [order.setup.target])
    refused = {
        "it names the model once": not (isinstance(names, list | tuple) and len(names) == 1 and names[0]),
        "it starts the workers itself": args.get(_EXECUTOR, "ray") != "ray",
        "it reports the metrics, and needs statistics for that": args.get("disable_log_stats") is True,
        "it accepts only engine arguments": bool(order.setup.extra_args),
    }
    for reason in (reason for reason, holds in refused.items() if holds):
        raise refusal("argument-not-taken", reason=reason)


HOOKS = Hooks(list_values=_list_values, prepare=_prepare)
