"""A VLLMRuntime, which the operator of vLLM's production-stack turns into a Deployment.

The operator decides much itself (operator/internal/controller/vllmruntime_controller.go at a6c01db0): the program to
start, the probes, and, unless the object says otherwise, no prefix caching or chunked prefill. It copies the object's
labels into the Deployment's selector, which is immutable. So values that differ between revisions are annotations of
the pods; otherwise a rollback would be rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Finding
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import TARGETS, Hooks
from draftwise.deploying.templating import list_args, list_env
from draftwise.knowledge.messages import refusal, warning
from draftwise.knowledge.vllm import get_release

_SWITCHES = {"enable_prefix_caching": "enablePrefixCaching", "enable_chunked_prefill": "enableChunkedPrefill"}
_V1 = "VLLM_USE_V1"
_PROGRAM = "/opt/venv/bin/vllm"
_WITH_PROGRAM = "lmcache/vllm-openai"
"""The image for which the project's chart starts that program; for others it starts `vllm`."""


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return an order that says what the operator would turn off where nobody says it."""
    args = dict.fromkeys(_SWITCHES, True) | dict(order.setup.args)
    own = {_V1: "1"} if _V1 in get_release(order.setup.engine_version, nearest=True).table("env") else {}
    return replace(order, setup=replace(order.setup, args=args, env={**own, **order.setup.env}))


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    registry, _, name = order.image.partition("/")
    if not name:
        raise refusal("image-without-registry", image=order.image)
    config = _make_config(order)
    marks = {label: value for label, value in order.labels.items() if label not in order.selector}
    return {
        "model": list_args(order)[0],
        "config": config,
        "registry": registry,
        "image_name": name,
        "pod_annotations": {**order.annotations, **marks},
    }


def _make_config(order: ServiceOrder) -> dict[str, Any]:
    args, env = dict(order.setup.args), dict(order.setup.env)
    given = {field: args.pop(flag) for flag, field in _SWITCHES.items() if isinstance(args.get(flag), bool)}
    v1 = env.pop(_V1) == "1" if env.get(_V1) in ("0", "1") else True
    words = list_args(replace(order, setup=replace(order.setup, args=args)))[1:]
    variables = list_env(replace(order, setup=replace(order.setup, env=env)))
    return {"port": order.port, "v1": v1, **given, "extraArgs": words, **({"env": variables} if variables else {})}


def _find_limits(order: ServiceOrder) -> Iterator[Finding]:
    """Yield what the operator decides and the service may not bear."""
    if _WITH_PROGRAM not in order.image:
        yield warning("program-fixed", program=_PROGRAM, with_program=_WITH_PROGRAM, image=order.image)
    deadline_s = TARGETS["vllmruntime"].deadline_s or 0
    if order.startup_s > deadline_s:
        yield warning("progress-deadline-fixed", case="operator", deadline_s=deadline_s, startup_s=order.startup_s)


HOOKS = Hooks(list_values=_list_values, prepare=_prepare, find_limits=_find_limits)
