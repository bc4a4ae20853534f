"""The words that every platform's server is started with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from draftwise.core import InvalidSetup
from draftwise.deploying.order import Order
from draftwise.setups.write import write_flags

__all__ = ["PROGRAM", "dump_yaml", "list_args"]

PROGRAM = ["vllm", "serve"]
"""Said explicitly, as the entry point of vLLM's images differs from release to release."""
_Fastest: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The dumper of libyaml is ten times as fast as the one in Python."""


class _Dumper(_Fastest):  # type: ignore[misc]  # which of the two it is depends on how PyYAML was built
    """Writes a text of several lines as such."""


def _write_text(dumper: Any, text: str) -> yaml.ScalarNode:
    node: yaml.ScalarNode = dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text.strip("\n") else None
    )
    return node


_Dumper.add_representer(str, _write_text)


def list_args(order: Order) -> list[str]:
    """Return the arguments, a flag and its value in one word where it has one: a rollback drops a single line.

    Raises:
        InvalidSetup: a word holds `{{`, which platforms take for a template.
    """
    words = [order.placement.target or order.setup.target, *_join(order)]
    for word in words:
        if "{{" in word:
            raise InvalidSetup.because(
                "argument-is-template",
                f"The argument {word[:60]!r} holds {{{{, which helm and KServe would fill in as a template.",
                fix="Put it into a file of the image or a mount, and name the file.",
            )
    return words


def _join(order: Order) -> Iterator[str]:
    for words in write_flags(order.setup):
        if words[0] == "--speculative-config":
            yield f"{words[0]}={json.dumps(json.loads(words[1]), separators=(',', ':'))}"
        elif len(words) == 2 and words[0].startswith("--"):
            yield "=".join(words)
        else:
            yield from words


def dump_yaml(*documents: Any) -> str:
    """Return YAML documents, with no line broken and nothing by reference: people edit these files."""
    copies = (json.loads(json.dumps(each)) for each in documents)
    options = {"Dumper": _Dumper, "sort_keys": False, "width": 100_000, "allow_unicode": True}
    return "---\n".join(yaml.dump(each, **options) for each in copies)
