"""Values of the chart of vLLM's production-stack: one engine, behind the chart's router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import list_args

_SIZE, _CACHING = "tensor_parallel_size", "enable_prefix_caching"
_SWITCHES = {_CACHING: "enablePrefixCaching", "enable_chunked_prefill": "enableChunkedPrefill"}
"""Flags that the chart writes by itself, from its own keys."""


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return an order that says whether prefixes are cached: the chart turns that off where nobody says it."""
    return replace(order, setup=replace(order.setup, args={_CACHING: True, **order.setup.args}))


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    repository, _, tag = order.image.rpartition(":")
    args = dict(order.setup.args)
    size = args.get(_SIZE)
    config = {key: args.pop(flag) for flag, key in _SWITCHES.items() if isinstance(args.get(flag), bool)}
    if isinstance(size, int) and size > 0:
        config["tensorParallelSize"] = args.pop(_SIZE)  # by which the chart knows that /dev/shm is needed
    model, *words = list_args(replace(order, setup=replace(order.setup, args=args)))
    return {"repository": repository, "tag": tag, "model": model, "config": {**config, "extraArgs": words}}


HOOKS = Hooks(list_values=_list_values, prepare=_prepare)
