"""Kubernetes manifests: every container that starts a vLLM server, whatever kind of object holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.setups.read.manifests.containers import read_container
from draftwise.setups.read.manifests.kserve import Runtimes, find_llm_services, find_predictors, get_runtimes
from draftwise.setups.read.manifests.parts import get_mapping, walk
from draftwise.setups.read.manifests.variables import Stores, read_stores
from draftwise.setups.read.manifests.yaml_text import Document
from draftwise.setups.read.shell.launch import Launch

__all__ = ["find_objects"]


def find_objects(documents: Sequence[Document], given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the servers of a file's objects; runtimes, ConfigMaps and Secrets are looked up among the objects.

    Args:
        documents: the objects.
        given: values of variables that the file takes from elsewhere.
    """
    runtimes, stores = get_runtimes(documents), read_stores(documents, given)
    for document in documents:
        for launch in _find(document, documents, runtimes, stores):
            name = get_mapping(document.value, "metadata").get("name")
            kind = document.value.get("kind")
            yield replace(launch, where=f"{launch.where} ({kind} {name})" if name else launch.where)


def _find(document: Document, documents: Sequence[Document], runtimes: Runtimes, stores: Stores) -> Iterator[Launch]:
    match get_mapping(document.value).get("kind"):
        case "InferenceService":
            yield from find_predictors(document, runtimes, stores)
        case "LLMInferenceService":
            yield from find_llm_services(document, stores)
        case "VLLMRuntime":
            from draftwise.setups.read.manifests.stack import find_runtimes

            yield from find_runtimes(document, stores)
        case "Application" | "ApplicationSet" | "HelmRelease":
            return  # values of a chart, which are no pods yet
        case "RayService":
            return  # its pods are Ray's, which starts what the config inside says
        case "LeaderWorkerSet":
            from draftwise.setups.read.manifests.groups import find_groups

            yield from find_groups(document, stores)
        case "ServingRuntime" | "ClusterServingRuntime" if _is_used(document, documents):
            return  # read with the services that use it
        case _:
            yield from _find_containers(document, document.value, stores)


def _is_used(runtime: Document, documents: Sequence[Document]) -> bool:
    name = get_mapping(runtime.value, "metadata").get("name")
    models = (get_mapping(each.value, "spec", "predictor", "model") for each in documents)
    return any(model.get("runtime") == name for model in models)


def _find_containers(document: Document, value: Any, stores: Stores) -> Iterator[Launch]:
    for path, mapping in walk(value):
        containers = mapping.get("containers")
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(container, Mapping):
                launch = read_container(document, (*path, "containers", index), container, stores, mapping)
                if launch is not None:
                    yield launch
