"""Compose files: each service whose container starts a vLLM server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Finding
from draftwise.facts.rules import get_rule
from draftwise.setups.read.manifests.parts import Found, get_env, get_mapping, get_words
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word, split_words

__all__ = ["find_services", "is_compose"]

_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?::?([-?+])([^{}]*))?\})")


def is_compose(document: Document) -> bool:
    """Say whether a document has the layout of a compose file."""
    return bool(get_mapping(document.value, "services")) and "apiVersion" not in document.value


def find_services(document: Document) -> Iterator[Launch]:
    """Yield the servers of a compose file."""
    for name, service in get_mapping(document.value, "services").items():
        if isinstance(service, Mapping):
            launch = _read_service(document, ("services", name), service)
            if launch is not None:
                yield launch


def _read_service(document: Document, path: Path, service: Mapping[str, Any]) -> Launch | None:
    found: Found = []
    unset: dict[str, None] = {}
    words = {key: _words(document, (*path, key), service.get(key), found, unset) for key in ("entrypoint", "command")}
    image = _fill_in(str(service.get("image") or ""), unset)
    launch = run_image(image, words["entrypoint"], words["command"])
    if launch is None:
        return None
    env = get_env(document, (*path, "environment"), service.get("environment"))
    where = f"line {document.line(path)} {get_text(path)}"
    if unset:
        found.append(_unset(list(unset), where))
    return replace(
        launch,
        env={name: _fill_in(value, unset) for name, value in env.items()} | dict(launch.env),
        num_gpus=_count_gpus(service) or launch.num_gpus,
        where=where,
        findings=(*found, *launch.findings),
    )


def _words(document: Document, path: Path, value: Any, found: Found, unset: dict[str, None]) -> tuple[Word, ...]:
    if isinstance(value, str):
        text = _fill_in(value, unset)
        return split_words(text, line=document.line(path), place=get_text(path))
    return tuple(replace(word, text=_fill_in(word.text, unset)) for word in get_words(document, path, value, found))


def _fill_in(text: str, unset: dict[str, None]) -> str:
    """Put defaults in for variables, as compose does; those without one stay and are noted."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[3] == "-":
            return str(match[4])
        unset[match[1] or match[2]] = None
        return match[0]

    return _VARIABLE.sub(value, text)


def _unset(names: list[str], where: str) -> Finding:
    return get_rule("unresolved-variable").ruling(
        f"{', '.join(names[:10])} comes from outside this file and is read as it stands.",
        where=where,
        fix="Give a default as ${NAME:-value}; write $$ for a dollar sign.",
    )


def _count_gpus(service: Mapping[str, Any]) -> int | None:
    devices = get_mapping(service, "deploy", "resources", "reservations").get("devices")
    first = devices[0] if isinstance(devices, list) and devices else {}
    ids = first.get("device_ids") if isinstance(first, Mapping) else None
    if isinstance(ids, list):
        return len(ids)
    count = first.get("count") if isinstance(first, Mapping) else None
    given = service.get("gpus") if count is None else count
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None
