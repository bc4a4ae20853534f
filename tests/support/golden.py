"""What `deploy` writes for every platform, layout and mode, of a setup that a run has adopted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from draftwise.core import InvalidSetup
from draftwise.deploy import TARGETS, Mode, Platform, deploy, read_layout
from draftwise.deploy.order import Scale
from tests.support.adopted import IMAGES, ORDER

LAYOUTS = (None, "storage-uris", "modelcar:registry.local/llama:1", "pvc:models", "mixed:models")


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One file."""

    name: str
    text: str
    release: str
    """Of KServe."""


def make_golden(release: str) -> Iterator[Golden]:
    """Yield the YAML files of all targets, for one release of KServe."""
    for to in TARGETS:  # those that are not KServe's are the same for every release of it
        for platform in _list_platforms(to, release):
            try:
                folder = deploy(replace(ORDER, platform=platform, image=IMAGES.get(to, ORDER.image)), to)
            except InvalidSetup:
                continue  # the release has no such layout
            for name, text in folder.files.items():
                if name.endswith(".yaml"):
                    yield Golden(name=f"{to} {platform.layout} {platform.mode} {name}", text=text, release=release)


def _list_platforms(to: str, release: str) -> Iterator[Platform]:
    if to != "kserve":
        yield Platform(scale=Scale(most=4, per_replica=64) if TARGETS[to].scaled else None)
        return
    for mode in get_args(Mode):
        for layout in LAYOUTS:
            yield Platform(release=release, mode=mode, layout=None if layout is None else read_layout(layout))
