"""KServe's LLMInferenceService: vLLM behind llm-d's scheduler, from KServe's own template.

The template passes the arguments to `eval`, so a shell reads them again, and JSON would lose its quotes. The
speculative config is therefore written key by key (`--speculative-config.method=eagle3`), which reads the same with and
without a shell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Finding
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.inference_service import warn_of_deadline
from draftwise.deploying.targets.target_rows import TARGETS, Hooks
from draftwise.deploying.templating import list_args
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.models import names_directory

_CONFIG = "--speculative-config"
_SIZE = "tensor_parallel_size"


def _prepare(order: ServiceOrder) -> ServiceOrder:
    """Return the order as it is."""
    if names_directory(order.setup.target):
        raise refusal("layout-cannot-fetch", target=order.setup.target)
    return order


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    """Return the arguments as words that a shell leaves alone."""
    args = dict(order.setup.args)
    size = args.get(_SIZE)
    is_split = isinstance(size, int) and size > 0
    if is_split:
        del args[_SIZE]
    plain = replace(order, setup=replace(order.setup, args=args, spec=None))
    words = [*list_args(plain)[1:], *_spell_config(order)]
    for word in words:
        if shlex.quote(word) != word:
            raise refusal("argument-read-by-shell", word=word[:60])
    return {"words": words, "parallelism": {"tensor": size} if is_split else None}


def _spell_config(order: ServiceOrder) -> Iterator[str]:
    if order.setup.spec is not None:
        yield from _spell(_CONFIG, order.setup.spec.to_dict())


def _spell(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value and not any("." in key for key in value):
        for key, item in value.items():
            yield from _spell(f"{flag}.{key}", item)
    elif isinstance(value, bool | int | float):
        yield f"{flag}={json.dumps(value)}"
    elif isinstance(value, str) and _stays_text(value):
        yield f"{flag}={value}"
    else:
        raise refusal(
            "config-not-spelled",
            value=json.dumps(value)[:60],
            what=flag.removeprefix(_CONFIG).strip(".") or "the config",
            config=_CONFIG,
        )


def _stays_text(value: str) -> bool:
    """Say whether vLLM takes a text for a text and for no number, list or object."""
    try:
        json.loads(value)
    except ValueError:
        return bool(value)
    return False


def _find_limits(order: ServiceOrder) -> Iterator[Finding]:
    yield from warn_of_deadline(order, TARGETS["llminferenceservice"])


HOOKS = Hooks(list_values=_list_values, prepare=_prepare, find_limits=_find_limits)
