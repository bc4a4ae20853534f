"""Values of llm-d's modelservice Helm chart: the containers of its decode and prefill pods.

The chart puts model and parallelism in front of the arguments (llm-d-modelservice, templates/_helpers.tpl).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.setups.read.manifests.containers import get_container_words, read_container
from draftwise.setups.read.manifests.parts import Found, get_gpus, get_mapping
from draftwise.setups.read.manifests.variables import Stores
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word

__all__ = ["find_pods"]

_ROLES = ("decode", "prefill")
_PARALLEL: Mapping[str, str] = {
    "tensor": "--tensor-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}
_NAME = "{{ .Values.modelArtifacts.name }}"
_MODELS = "/model-cache"
"""Where the chart mounts a claim if the values do not say."""


def find_pods(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the servers that the chart would start."""
    for role in _ROLES:
        pod = get_mapping(document.value, role)
        containers = pod.get("containers")
        if pod.get("create") is False or not isinstance(containers, list):
            continue
        for index, container in enumerate(containers):
            if isinstance(container, Mapping):
                launch = _read(document, (role, "containers", index), container, stores)
                if launch is not None:
                    yield launch


def _read(document: Document, path: Path, container: Mapping[str, Any], stores: Stores) -> Launch | None:
    command = container.get("modelCommand") or "custom"
    if command == "custom":
        return read_container(document, path, container, stores)
    found: Found = []
    env = stores.read_env(document, path, container)
    model, *words = _get_brought(document, str(path[0]))
    words += get_container_words(document, (*path, "args"), container, env, found)
    entrypoint = (Word("vllm"), Word("serve")) if command == "vllmServe" else ()
    front = (model,) if command == "vllmServe" else (Word("--model"), model)
    image = Word(str(container.get("image") or ""))
    launch = run_image(image, entrypoint, (*front, *words), env=env)
    if launch is None:
        return None
    where = f"line {document.line(path)} {get_text(path)}"
    return replace(launch, num_gpus=get_gpus(container), where=where, findings=(*found, *launch.findings))


def _get_brought(document: Document, role: str) -> Iterator[Word]:
    """Yield what the chart puts before the arguments of a container: the model, then flags."""
    artifacts, uri = get_mapping(document.value, "modelArtifacts"), ("modelArtifacts", "uri")
    name = str(artifacts.get("name") or "")
    text = str(artifacts.get("uri") or "").replace(_NAME, name).replace('"', "")
    yield Word(_get_model(text, str(artifacts.get("mountPath") or _MODELS)), document.line(uri), get_text(uri))
    for key, flag in _PARALLEL.items():
        size = get_mapping(document.value, role, "parallelism").get(key)
        if isinstance(size, int) and size > 1:
            here = (role, "parallelism", key)
            yield from (Word(part, document.line(here), get_text(here)) for part in (flag, str(size)))
    yield Word("--served-model-name")
    yield Word(name)


def _get_model(uri: str, mount: str) -> str:
    """Return the model that the chart hands to vLLM for a URI."""
    protocol, _, rest = uri.partition("://")
    match protocol:
        case "hf":
            return rest
        case "pvc":
            return f"{mount}/{rest.partition('/')[2]}"
        case "pvc+hf":
            return "/".join(rest.split("/")[-2:])
    return ""
