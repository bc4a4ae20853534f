"""Kubernetes manifests: containers that start a vLLM server, groups of pods, and documents inside objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.setups.read.manifests.containers import Stores, read_container, read_stores
from draftwise.setups.read.manifests.inference_services import (
    Runtimes,
    find_llm_services,
    find_predictors,
    get_runtimes,
)
from draftwise.setups.read.manifests.parts import get_mapping, walk
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, cut_out, read_yaml
from draftwise.setups.read.shell.launch import Launch
from draftwise.setups.read.shell.words import Word

_TEMPLATE: Path = ("spec", "template")


def find_embedded(documents: Iterable[YamlDocument]) -> Iterator[YamlDocument]:
    """Yield the documents inside objects, with their lines in the whole text.

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
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


_OF_HOST = frozenset({"--node-rank", "-r", "--master-addr", "--data-parallel-address", "-dpa"})
"""Flags whose values the group settles."""
_SETTLED = re.compile(r"\$[({]?(?:LWS_\w+|POD_IP)[)}]?")
_GROUP = ("spec", "leaderWorkerTemplate")
_HEADLESS = "--headless"


def find_groups(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the servers of a set: that of a group's first pod, and others that are not its workers."""
    size = get_mapping(document.value, *_GROUP).get("size", 1)
    num_pods = size if isinstance(size, int) and not isinstance(size, bool) else None
    leaders, workers = (
        list(_find_in_group(document, f"{role}Template", num_pods, stores)) for role in ("leader", "worker")
    )
    started = [_get_shared(each.words) for each in leaders]
    yield from leaders
    for each in workers:
        if all(word.text != _HEADLESS for word in each.words) or _get_shared(each.words) not in started:
            yield each


def _find_in_group(document: YamlDocument, role: str, num_pods: int | None, stores: Stores) -> Iterator[Launch]:
    pod = get_mapping(document.value, *_GROUP, role, "spec")
    containers = pod.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, Mapping):
            own = container.get("env")
            env = [
                *(own if isinstance(own, list) else ()),
                *_list_variables(num_pods),
            ]  # behind its own, whose places stay
            place = (*_GROUP, role, "spec", "containers", index)
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


def _get_shared(words: Sequence[Word]) -> list[str]:
    """Return what a worker has to have in common with the pod that answers."""
    return [word.text for word in words if word.text != _HEADLESS and not word.text.startswith("--api-server-count")]


def find_objects(documents: Sequence[YamlDocument], given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the servers of a file's objects; runtimes, ConfigMaps and Secrets are looked up among the objects."""
    runtimes, stores = get_runtimes(documents), read_stores(documents, given)
    for document in documents:
        for launch in _find(document, documents, runtimes, stores):
            name = get_mapping(document.value, "metadata").get("name")
            kind = document.value.get("kind")
            others = [each.value for each in documents if each is not document]
            place = None if launch.place is None else replace(launch.place, others=others)
            yield replace(launch, where=f"{launch.where} ({kind} {name})" if name else launch.where, place=place)


def _find(
    document: YamlDocument, documents: Sequence[YamlDocument], runtimes: Runtimes, stores: Stores
) -> Iterator[Launch]:
    match get_mapping(document.value).get("kind"):
        case "InferenceService":
            yield from find_predictors(document, runtimes, stores)
        case "LLMInferenceService":
            yield from find_llm_services(document, stores)
        case "VLLMRuntime":
            from draftwise.setups.read.manifests.helm_values import find_runtimes

            yield from find_runtimes(document, stores)
        case "Application" | "ApplicationSet" | "HelmRelease":
            return  # values of a chart, which are no pods yet
        case "RayService":
            return  # its pods are Ray's, which starts what the config inside says
        case "Model" if str(document.value.get("apiVersion")).startswith("kubeai.org/"):
            yield from _find_model(document, stores)
        case "LeaderWorkerSet":
            yield from find_groups(document, stores)
        case "ServingRuntime" | "ClusterServingRuntime" if _is_used(document, documents):
            return  # read with the services that use it
        case _:
            yield from _find_containers(document, document.value, stores)


_KUBEAI = ("python3", "-m", "vllm.entrypoints.openai.api_server")
_PROFILE = re.compile(r".*gpu.*?:(\d{1,3})")


def _find_model(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the server of a Model of KubeAI (internal/modelcontroller/engine_vllm.go at 07722ae0)."""
    spec = get_mapping(document.value, "spec")
    if spec.get("engine") != "VLLM":
        return
    url, count = str(spec.get("url") or ""), _PROFILE.fullmatch(str(spec.get("resourceProfile")))
    container = {
        "image": spec.get("image"),
        "command": [*_KUBEAI, f"--model={url.removeprefix('hf://').partition('?')[0]}"],
        "args": spec.get("args"),
        "env": [{"name": name, "value": value} for name, value in get_mapping(spec, "env").items()],
        "resources": {"limits": {"nvidia.com/gpu": count[1]}} if count else {},
    }
    launch = read_container(document, ("spec",), container, stores)
    if launch is not None:
        yield launch


def _is_used(runtime: YamlDocument, documents: Sequence[YamlDocument]) -> bool:
    name = get_mapping(runtime.value, "metadata").get("name")
    models = (get_mapping(each.value, "spec", "predictor", "model") for each in documents)
    return any(model.get("runtime") == name for model in models)


_MAIN: Path = ("mainContainer",)
"""The container of a service in Dynamo's graph, whose images start no server by themselves."""


def _find_containers(document: YamlDocument, value: Any, stores: Stores) -> Iterator[Launch]:
    for path, mapping in walk(value):
        containers = mapping.get("containers")
        listed = [("containers", index) for index in range(len(containers))] if isinstance(containers, list) else []
        for place in (*listed, _MAIN):
            container = _follow(mapping, place)
            if isinstance(container, Mapping):
                launch = read_container(document, (*path, *place), container, stores, mapping)
                if launch is not None and (place != _MAIN or launch.entry != "image"):
                    yield launch
