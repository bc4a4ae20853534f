"""LeaderWorkerSet: groups of pods of which the first one answers, and the others may be its workers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.facts.rules import get_rule
from draftwise.setups.read.manifests.containers import read_container
from draftwise.setups.read.manifests.parts import get_mapping
from draftwise.setups.read.manifests.variables import Stores
from draftwise.setups.read.manifests.yaml_text import Document
from draftwise.setups.read.shell.launch import Launch
from draftwise.setups.read.shell.words import Word

__all__ = ["find_groups"]

_OF_HOST = frozenset({"--node-rank", "-r", "--master-addr", "--data-parallel-address", "-dpa"})
"""Flags whose values the group settles."""
_SETTLED = re.compile(r"\$[({]?(?:LWS_\w+|POD_IP)[)}]?")
_TEMPLATE = ("spec", "leaderWorkerTemplate")
_HEADLESS = "--headless"
_SIZE = re.compile(r"(?:--nnodes|-n)(?:=(\d+))?")


def find_groups(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the servers of a set: what the first pod of a group starts, and others that are no workers of it.

    Args:
        document: the set.
        stores: where variables of its containers may come from.
    """
    template = get_mapping(document.value, *_TEMPLATE)
    size = template.get("size")
    leaders, workers = (list(_find(document, f"{role}Template", size, stores)) for role in ("leader", "worker"))
    started = [_get_shared(each.words) for each in leaders]
    for each in leaders:
        yield _check_size(each, size)
    yield from (each for each in workers if not (_is_worker(each) and _get_shared(each.words) in started))


def _find(document: Document, role: str, size: Any, stores: Stores) -> Iterator[Launch]:
    pod = get_mapping(document.value, *_TEMPLATE, role, "spec")
    containers = pod.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            own = container.get("env")
            env = [*(own if isinstance(own, list) else ()), *_list_variables(size)]  # behind its own, whose places stay
            place = (*_TEMPLATE, role, "spec", "containers", index)
            launch = read_container(document, place, {**container, "env": env}, stores, pod)
            if launch is not None:
                yield replace(launch, words=tuple(_drop_settled(launch.words)))


def _list_variables(size: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what the controller puts into the environment of every container."""
    if isinstance(size, int):
        yield {"name": "LWS_GROUP_SIZE", "value": str(size)}
    for name in ("LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"):
        yield {"name": name, "valueFrom": {"place in its group": ""}}


def _drop_settled(words: Sequence[Word]) -> Iterator[Word]:
    """Yield the words but for flags by which a group's pods find each other."""
    index = 0
    while index < len(words):
        flag, separator, value = words[index].text.partition("=")
        after = words[index + 1].text if index + 1 < len(words) else ""
        if flag not in _OF_HOST or not _SETTLED.fullmatch(value if separator else after):
            yield words[index]
        elif not separator:
            index += 1
        index += 1


def _is_worker(launch: Launch) -> bool:
    return any(word.text == _HEADLESS for word in launch.words)


def _get_shared(words: Sequence[Word]) -> list[str]:
    """Return what a worker has to have in common with the pod that answers."""
    return [word.text for word in words if word.text != _HEADLESS and not word.text.startswith("--api-server-count")]


def _check_size(launch: Launch, size: Any) -> Launch:
    """Return a server with what is wrong about the number of its hosts."""
    texts = [word.text for word in launch.words]
    for text, after in zip(texts, [*texts[1:], ""], strict=True):
        found = _SIZE.fullmatch(text)
        hosts = found and (found[1] or after)
        if hosts and hosts.isdecimal() and isinstance(size, int) and int(hosts) != size:
            finding = get_rule("group-of-other-size").ruling(
                f"The server wants {hosts} hosts, and a group has {size} pods.",
                where=launch.where,
                fix=f"Set size to {hosts}.",
            )
            return replace(launch, findings=(*launch.findings, finding))
    return launch
