"""Values of Helm charts that start vLLM: llm-d's modelservice, and vLLM's production-stack with its VLLMRuntime.

llm-d's chart puts model and parallelism before the arguments (llm-d-modelservice, templates/_helpers.tpl).

The production-stack's chart and operator add their own flags (helm/templates/deployment-vllm-multi.yaml and
operator/internal/controller/vllmruntime_controller.go at a6c01db0): prefix caching is off unless requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.knowledge.images import find_release
from draftwise.setups.read.manifests.containers import Stores, get_container_words, read_container
from draftwise.setups.read.manifests.parts import Findings, get_gpus, get_mapping, get_words
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word

_ROLES = ("decode", "prefill")
_PARALLEL: Mapping[str, str] = {
    "tensor": "--tensor-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}
_NAME = "{{ .Values.modelArtifacts.name }}"
_MODELS = "/model-cache"
"""Where the chart mounts a claim if the values do not say."""


def find_pods(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the servers that the chart starts."""
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


def _read(document: YamlDocument, path: Path, container: Mapping[str, Any], stores: Stores) -> Launch | None:
    command = container.get("modelCommand") or "custom"
    if command == "custom":
        return read_container(document, path, container, stores)
    found: Findings = []
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
    return replace(
        launch,
        num_gpus=get_gpus(container),
        where=where,
        findings=(*found, *launch.findings),
        place=Place(form="object", value=document.value, path=path),
    )


def _get_brought(document: YamlDocument, role: str) -> Iterator[Word]:
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


_MODEL_FLAGS: Mapping[str, str] = {
    "toolCallParser": "--tool-call-parser",
    "modelRevision": "--revision",
    "maxModelLen": "--max-model-len",
    "maxNumSeqs": "--max-num-seqs",
    "dtype": "--dtype",
}
_CONFIG_FLAGS: Mapping[str, str] = {
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxModelLen": "--max-model-len",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "dtype": "--dtype",
    "runner": "--runner",
    "convert": "--convert",
}
_MODEL_SWITCHES: Mapping[str, str] = {"enableLoRA": "enable-lora", "enableTool": "enable-auto-tool-choice"}
_CACHING: Mapping[str, str] = {"enablePrefixCaching": "enable-prefix-caching"}
_CHUNKING: Mapping[str, str] = {"enableChunkedPrefill": "enable-chunked-prefill"}


def find_model_specs(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the servers that the chart starts."""
    for index, entry in enumerate(document.value["servingEngineSpec"]["modelSpec"]):
        if isinstance(entry, Mapping):
            yield _read_entry(document, ("servingEngineSpec", "modelSpec", index), entry, stores)


def _read_entry(document: YamlDocument, path: Path, entry: Mapping[str, Any], stores: Stores) -> Launch:
    found: Findings = []
    here, config = (*path, "vllmConfig"), get_mapping(entry, "vllmConfig")
    words = [_name_model(document, path, entry), *_read_model(document, path, entry)]
    if config:  # the chart writes none of the flags below without it
        chunking = {key: flag for key, flag in _CHUNKING.items() if key in config}
        words += _switch(document, here, config, {**_CACHING, **chunking})
        words += _read_flags(document, here, config, _CONFIG_FLAGS)
        words += get_words(document, (*here, "extraArgs"), config.get("extraArgs"), found)
    image = f"{entry.get('repository') or 'vllm/vllm-openai'}:{entry.get('tag') or 'latest'}"
    env = stores.read_env(document, path, entry)
    return _launch(document, path, words, env=env, image=image, gpus=entry.get("requestGPU"), found=found)


def find_runtimes(document: YamlDocument, stores: Stores) -> Iterator[Launch]:
    """Yield the server that the operator starts for a VLLMRuntime."""
    found: Findings = []
    spec = get_mapping(document.value, "spec")
    model, config, around = (get_mapping(spec, key) for key in ("model", "vllmConfig", "deploymentConfig"))
    path, here = ("spec", "model"), ("spec", "vllmConfig")
    words = [_name_model(document, path, model), *_read_model(document, path, model)]
    words += _switch(document, here, config, {**_CACHING, **_CHUNKING})
    words += _read_flags(document, here, _leave_empty_out(config), _CONFIG_FLAGS)
    words += get_words(document, (*here, "extraArgs"), config.get("extraArgs"), found)
    own = Environment(values={"VLLM_USE_V1": "1" if config.get("v1") is True else "0"})
    given = stores.read_env(document, here, config)
    image = get_mapping(around, "image")
    name = "/".join(str(part) for part in (image.get("registry"), image.get("name")) if part)
    gpus = str(get_mapping(around, "resources").get("gpu", ""))
    count = int(gpus) if gpus.isdecimal() and len(gpus) < 5 else None
    launch = _launch(document, ("spec",), words, env=own | given, image=name, gpus=count, found=found)
    yield replace(launch, preset=frozenset(own.values.keys() - given.values.keys()))


def _launch(
    document: YamlDocument,
    path: Path,
    words: Sequence[Word],
    *,
    env: Environment,
    image: str,
    gpus: Any,
    found: Findings,
) -> Launch:
    return Launch(
        words=tuple(words),
        entry="serve",
        env=env,
        image=image,
        version=find_release(image),
        num_gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None,
        where=f"line {document.line(path)} {get_text(path)}",
        findings=tuple(found),
        place=Place(form="values", value=document.value, path=path),
    )


def _name_model(document: YamlDocument, path: Path, entry: Mapping[str, Any]) -> Word:
    here = (*path, "modelURL")
    return Word(str(entry.get("modelURL") or ""), document.line(here), get_text(here))


def _read_model(document: YamlDocument, path: Path, entry: Mapping[str, Any]) -> Iterator[Word]:
    """Yield the flags of what chart and operator say of the model itself."""
    yield from _switch(document, path, entry, {key: flag for key, flag in _MODEL_SWITCHES.items() if entry.get(key)})
    yield from _read_flags(document, path, _leave_empty_out(entry), _MODEL_FLAGS)


def _leave_empty_out(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values without those that make no flag there: empty texts and 0."""
    return {key: value for key, value in values.items() if value}


def _read_flags(
    document: YamlDocument, path: Path, values: Mapping[str, Any], flags: Mapping[str, str]
) -> Iterator[Word]:
    for key, flag in flags.items():
        if isinstance(values.get(key), (str, int, float)) and not isinstance(values[key], bool):
            place = (document.line((*path, key)), get_text((*path, key)))
            yield from (Word(flag, *place), Word(document.texts.get((*path, key), str(values[key])), *place))


def _switch(document: YamlDocument, path: Path, values: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[Word]:
    """Yield each flag, negated where its key does not say true."""
    for key, flag in flags.items():
        here = (*path, key)
        yield Word(f"--{flag}" if values.get(key) is True else f"--no-{flag}", document.line(here), get_text(here))
