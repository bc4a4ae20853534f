"""Documents inside of Kubernetes objects: Ray Serve's config in a RayService, chart values of Argo CD and Flux."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from draftwise.setups.read.manifests.parts import get_mapping
from draftwise.setups.read.manifests.yaml_text import Document, Path, cut_out, read_yaml

__all__ = ["find_embedded"]

_TEMPLATE: Path = ("spec", "template")


def find_embedded(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents inside of objects, with the lines that they have in the whole text.

    Raises:
        InvalidSetup: a text inside is not YAML.
    """
    for document in documents:
        for path in _find_paths(document.value):
            value = _follow(document.value, path)
            if isinstance(value, Mapping):
                yield cut_out(document, path)
            elif isinstance(value, str):
                yield from read_yaml(value, line=document.line(path) + 1)


def _find_paths(value: Any) -> Iterator[Path]:
    """Yield where an object of a known kind holds another document, as text or as values."""
    match get_mapping(value).get("kind"):
        case "RayService":
            yield "spec", "serveConfigV2"
        case "Application":
            yield from _find_sources(value, ())
        case "ApplicationSet":
            yield from _find_sources(value, _TEMPLATE)
        case "HelmRelease":
            yield "spec", "values"


def _find_sources(value: Any, around: Path) -> Iterator[Path]:
    """Yield the chart values of an Application's sources; `valuesObject` goes over `values`."""
    path = (*around, "spec")
    spec = get_mapping(value, *map(str, path))
    sources = spec.get("sources")
    paths: list[Path] = (
        [(*path, "sources", index) for index in range(len(sources))] if isinstance(sources, list) else []
    )
    for source in paths or [(*path, "source")]:
        helm = get_mapping(_follow(value, source), "helm")
        yield (*source, "helm", "valuesObject" if helm.get("valuesObject") else "values")


def _follow(value: Any, path: Path) -> Any:
    """Return what stands at a path; None for nothing."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
