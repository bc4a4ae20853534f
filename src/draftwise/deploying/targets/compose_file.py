"""A compose file with one service; texts are escaped, because compose expands variables."""

from __future__ import annotations

from collections.abc import Mapping

from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.targets.target_rows import Hooks
from draftwise.deploying.templating import list_args


def _list_values(order: ServiceOrder) -> Mapping[str, object]:
    return {
        "args": [_escape(word) for word in list_args(order)],
        "environment": {name: _escape(value) for name, value in order.setup.env.items()} or None,
        "all_labels": {**order.labels, **{name: _escape(text) for name, text in order.annotations.items()}},
    }


def _escape(text: str) -> str:
    return text.replace("$", "$$")


HOOKS = Hooks(list_values=_list_values)
