"""Fills the templates of `deploying/templates`: YAML with placeholders for values of an order or parts of a template.

A text that is only a placeholder (`$args`) becomes the value itself; None drops the key or the item. In a longer text
(`${name}-http`), the value is inserted as text. A key that is a placeholder without a value (`$probes:`) is replaced by
the keys of its mapping.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any

import yaml

from draftwise.deploying.order import ServiceOrder
from draftwise.knowledge.messages import refusal
from draftwise.setups.write import write_flags

PROGRAM = ["vllm", "serve"]
"""The server's command, explicit because the entry point of vLLM's images differs between releases."""
_PERIOD_S = 10
"""Seconds between two probes of a start, as in `parts.yaml`."""
_GIB = 1 << 30
_PLACEHOLDER = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PARTS = "parts.yaml"
_FastDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The dumper of libyaml is ten times as fast as the one in Python."""
_FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Dumper(_FastDumper):  # type: ignore[misc]  # which of the two it is depends on how PyYAML was built
    """Writes a text of several lines as a block."""


def _write_text(dumper: Any, text: str) -> yaml.ScalarNode:
    node: yaml.ScalarNode = dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text.strip("\n") else None
    )
    return node


_Dumper.add_representer(str, _write_text)


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents without broken lines and without references, because people edit these files."""
    copies = (json.loads(json.dumps(each)) for each in documents)
    options = {"Dumper": _Dumper, "sort_keys": False, "width": 100_000, "allow_unicode": True}
    return "---\n".join(yaml.dump(each, **options) for each in copies)


def list_args(order: ServiceOrder) -> list[str]:
    """Return the server's arguments, with a flag and its value as one word, so that a rollback drops a single line.

    Raises:
        InvalidSetup: a word contains `{{`, which platforms read as a template.
    """
    words = [order.placement.target or order.setup.target, *_join(order)]
    for word in words:
        if "{{" in word:
            raise refusal("argument-is-template", word=word[:60])
    return words


def _join(order: ServiceOrder) -> Iterator[str]:
    for words in write_flags(order.setup):
        if words[0] == "--speculative-config":
            yield f"{words[0]}={json.dumps(json.loads(words[1]), separators=(',', ':'))}"
        elif len(words) == 2 and words[0].startswith("--"):
            yield "=".join(words)
        else:
            yield from words


def list_env(order: ServiceOrder) -> list[dict[str, str]] | None:
    """Return the variables in the form of a container's `env`; None without variables."""
    return [{"name": name, "value": _as_it_stands(value)} for name, value in order.setup.env.items()] or None


def _as_it_stands(text: str) -> str:
    """Return a text of a container in which Kubernetes fills in nothing: it reads `$(NAME)`, and `$$` as one `$`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def to_gib(num_bytes: int) -> str:
    """Return a size in whole GiB, in Kubernetes' notation."""
    return f"{ceil(num_bytes / _GIB)}Gi"


def _select_node(order: ServiceOrder) -> dict[str, str] | None:
    return {"nvidia.com/gpu.product": order.gpu_product} if order.gpu_product else None


def _select_node_by_terms(order: ServiceOrder) -> list[dict[str, Any]] | None:
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": [order.gpu_product]}
    return [{"matchExpressions": [product]}] if order.gpu_product else None


VALUES: Mapping[str, Callable[[ServiceOrder], Any]] = {
    "name": lambda order: order.name,
    "service": lambda order: order.service,
    "service_name": lambda order: order.name,
    "pool": lambda order: order.pool,
    "image": lambda order: order.image,
    "target": lambda order: order.setup.target,
    "program": lambda _: PROGRAM,
    "args": lambda order: [_as_it_stands(word) for word in list_args(order)],
    "env": list_env,
    "labels": lambda order: dict(order.labels),
    "selector": lambda order: dict(order.selector),
    "annotations": lambda order: dict(order.annotations),
    "port": lambda order: order.port,
    "port_text": lambda order: str(order.port),
    "probe_port": lambda _: "http",
    "replicas": lambda order: None if order.platform.scale else 1,  # each apply would undo an autoscaler's number
    "cpus": lambda order: order.host.cpus,
    "cpu_quantity": lambda order: str(order.host.cpus),
    "num_gpus": lambda order: order.num_gpus,
    "gpu_quantity": lambda order: str(order.num_gpus),
    "gpu_product": lambda order: order.gpu_product or None,
    "node_selector": _select_node,
    "node_selector_terms": _select_node_by_terms,
    "account": lambda order: order.platform.service_account or None,
    "memory": lambda order: to_gib(order.host.limit_bytes),
    "memory_bytes": lambda order: order.host.limit_bytes,
    "shm": lambda order: to_gib(order.host.shm_bytes),
    "shm_bytes": lambda order: order.host.shm_bytes,
    "startup_s": lambda order: order.startup_s,
    "progress_s": lambda order: order.startup_s + 60,
    "startup_failures": lambda order: ceil(order.startup_s / _PERIOD_S),
}
"""Placeholders that every template may use, next to the parts of `parts.yaml`."""


def write_template(name: str, order: ServiceOrder, values: Mapping[str, Any] | None = None) -> str:
    """Return the file of a template, filled."""
    return dump_yaml(*fill(name, order, values))


def fill(name: str, order: ServiceOrder | None, values: Mapping[str, Any] | None = None) -> list[Any]:
    """Return the documents of a template, filled; the arguments are those of `write_template`."""
    return [_Filling(order, values or {}).fill(each) for each in read_template(name)]


def fill_part(
    name: str, order: ServiceOrder | None, values: Mapping[str, Any] | None = None, *, of: str = _PARTS
) -> Any:
    """Return the part under a key of a template, filled; the other arguments are those of `write_template`."""
    return _Filling(order, values or {}).fill(read_template(of)[0][name])


@cache
def read_template(name: str) -> list[Any]:
    """Return the documents of a template, unfilled and shared: do not change them."""
    text = files("draftwise.deploying").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    return list(yaml.load_all(text, Loader=_FastLoader))


class _Filling:
    """Fills templates with the values of one order."""

    def __init__(self, order: ServiceOrder | None, values: Mapping[str, Any]) -> None:
        self._order, self._values = order, values

    def look_up(self, name: str) -> Any:
        """Return what a placeholder stands for; KeyError for an unknown one."""
        if name in self._values:
            return self._values[name]
        if self._order is not None and name in VALUES:
            return VALUES[name](self._order)
        return self.fill(read_template(_PARTS)[0][name])

    def fill(self, value: Any) -> Any:
        match value:
            case dict():
                return dict(self._fill_items(value))
            case list():
                return [filled for item in value if (filled := self.fill(item)) is not None]
            case str():
                found = _PLACEHOLDER.fullmatch(value)
                return self.look_up(found[1] or found[2]) if found else self._write(value)
        return value

    def _fill_items(self, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in mapping.items():
            if value is None and (found := _PLACEHOLDER.fullmatch(key)):
                yield from self.look_up(found[1] or found[2]).items()
            elif (filled := self.fill(value)) is not None:
                yield self._write(key), filled

    def _write(self, text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: str(self.look_up(found[1] or found[2])), text)
