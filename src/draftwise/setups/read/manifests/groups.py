"""LeaderWorkerSet: groups of pods of which the first one answers, and the others may be its workers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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


def find_groups(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the servers of a set: what the first pod of a group starts, and others that are no workers of it.

    Args:
        document: the set.
        stores: where variables of its containers may come from.
    """
    size = get_mapping(document.value, *_TEMPLATE).get("size", 1)
    num_pods = size if isinstance(size, int) and not isinstance(size, bool) else None
    leaders, workers = (list(_find(document, f"{role}Template", num_pods, stores)) for role in ("leader", "worker"))
    started = [_get_shared(each.words) for each in leaders]
    yield from leaders
    yield from (each for each in workers if not (_is_worker(each) and _get_shared(each.words) in started))


def _find(document: Document, role: str, num_pods: int | None, stores: Stores) -> Iterator[Launch]:
    pod = get_mapping(document.value, *_TEMPLATE, role, "spec")
    containers = pod.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            own = container.get("env")
            env = [
                *(own if isinstance(own, list) else ()),
                *_list_variables(num_pods),
            ]  # behind its own, whose places stay
            place = (*_TEMPLATE, role, "spec", "containers", index)
            launch = read_container(document, place, {**container, "env": env}, stores, pod)
            if launch is not None:
                yield replace(launch, words=tuple(_drop_settled(launch.words)), num_hosts=num_pods)


def _list_variables(num_pods: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield what the controller puts into the environment of every container."""
    if num_pods is not None:
        yield {"name": "LWS_GROUP_SIZE", "value": str(num_pods)}
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
