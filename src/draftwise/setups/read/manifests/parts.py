"""Reads the parts that compose files and Kubernetes manifests share: arguments and GPUs as YAML values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Finding
from draftwise.knowledge.rules import get_rule
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.shell.words import Word, check_length, split_words

Findings = list[Finding]

_KINDS: Mapping[type, str] = {dict: "a mapping", list: "a list", type(None): "nothing"}
_NO_TEXT = "a number or a truth value"
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")


def get_mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under nested keys; empty if missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def get_words(document: YamlDocument, path: Path, value: Any, found: Findings) -> tuple[Word, ...]:
    """Return a list of arguments as words; other values are reported, and read as probably meant."""
    if not isinstance(value, list):
        return () if value is None else _read_no_list(document, path, value, found)
    words: list[Word] = []
    for index, item in enumerate(value):
        here = (*path, index)
        place, line = get_text(here), document.line(here)
        if isinstance(item, str) or here in document.texts:
            text = item if isinstance(item, str) else document.texts[here]
            words.append(Word(text, line, place))
        elif isinstance(item, Mapping):
            words += (Word(text, line, place) for key, inner in item.items() for text in _as_meant(key, inner))
        if not isinstance(item, str):
            found.append(_not_text(item, line, place))
    check_length(sum(len(word.text) for word in words))
    return tuple(words)


def _read_no_list(document: YamlDocument, path: Path, value: Any, found: Findings) -> tuple[Word, ...]:
    """Return what was meant by arguments that are no list, and report them."""
    line, place = document.line(path), get_text(path)
    kind = "one text" if isinstance(value, str) else _KINDS.get(type(value), _NO_TEXT)
    found.append(get_rule("arguments-not-a-list").ruling(key=path[-1], kind=kind, line=line, place=place))
    return split_words(value, line=line, place=place) if isinstance(value, str) else ()


def _as_meant(key: str, value: Any) -> Iterator[str]:
    yield key
    if value is not None:
        yield value if isinstance(value, str) else json.dumps(value)


def _not_text(item: Any, line: int, place: str) -> Finding:
    kind = _KINDS.get(type(item), _NO_TEXT)
    return get_rule("argument-not-text").ruling(kind=kind, line=line, place=place)


def get_gpus(container: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs that a Kubernetes container requests; None without a request."""
    for kind in ("limits", "requests"):
        resources = get_mapping(container, "resources", kind)
        for name in _GPU_RESOURCES:
            count = str(resources.get(name, ""))
            if count.isdecimal() and len(count) < 5:
                return int(count)
    return None


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every mapping inside a value with its path, outer ones first."""
    if isinstance(value, Mapping):
        yield path, value
        for key, inner in value.items():
            yield from walk(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from walk(inner, (*path, index))
