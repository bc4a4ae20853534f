"""What `deploy` writes for every platform, layout and mode, of a setup that a run has adopted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

from draftwise.core import InvalidSetup
from draftwise.deploying import TARGETS, Mode, Platform, deploy, read_layout
from draftwise.deploying.order import Scale
from draftwise.deploying.proxies import ProxyOptions
from tests.support.adopted import IMAGES, ORDER

LAYOUTS = (None, "storage-uris", "modelcar:registry.local/llama:1", "pvc:models", "mixed:models")


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One file."""

    name: str
    text: str
    release: str
    """Of KServe; empty where the file does not depend on it."""


def make_golden(release: str, targets: Iterable[str] = TARGETS) -> Iterator[Golden]:
    """Yield the YAML files of targets, for one release of KServe; those of other targets do not depend on it."""
    for to in targets:
        for platform in _list_platforms(to, release):
            hosts = {"nnodes": 2, "tensor_parallel_size": 2} if TARGETS[to].spans_hosts else {}
            setup = replace(ORDER.setup, args={**ORDER.setup.args, **hosts})
            order = replace(ORDER, setup=setup, platform=platform, image=IMAGES.get(to, ORDER.image))
            try:
                folder = deploy(order, to, proxy=ProxyOptions(kind="httproute") if to == "kubernetes" else None)
            except InvalidSetup:
                continue  # the release has no such layout
            for name, text in folder.files.items():
                if name.endswith(".yaml"):
                    title = f"{to} {platform.layout} {platform.mode} {name}"
                    yield Golden(name=title, text=text, release=release if to == "kserve" else "")


def _list_platforms(to: str, release: str) -> Iterator[Platform]:
    if to != "kserve":
        scale = Scale(most=4, per_replica=64) if TARGETS[to].scaled else None
        yield Platform(scale=scale, verifier="registry.local/draftwise:1" if to == "argo-rollouts" else "")
        return
    for mode in get_args(Mode):
        for layout in LAYOUTS:
            scale = Scale(most=4, per_replica=64) if layout == "pvc:models" else None
            yield Platform(
                release=release,
                mode=mode,
                layout=read_layout(layout) if layout else None,
                scale=scale,
                service_account="hub",
            )
