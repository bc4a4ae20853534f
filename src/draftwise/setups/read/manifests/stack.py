"""vLLM's production-stack: each entry of `servingEngineSpec.modelSpec` in values of its chart, and a VLLMRuntime.

Chart and operator add flags of their own (helm/templates/deployment-vllm-multi.yaml and
operator/internal/controller/vllmruntime_controller.go at a6c01db0): prefix caching is off unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.setups.read.manifests.parts import Found, get_mapping, get_words
from draftwise.setups.read.manifests.variables import Stores
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.images import image_version
from draftwise.setups.read.shell.launch import Launch
from draftwise.setups.read.shell.words import Word

__all__ = ["find_model_specs", "find_runtimes"]

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


def find_model_specs(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the servers that the chart would start."""
    for index, entry in enumerate(document.value["servingEngineSpec"]["modelSpec"]):
        if isinstance(entry, Mapping):
            yield _read_entry(document, ("servingEngineSpec", "modelSpec", index), entry, stores)


def _read_entry(document: Document, path: Path, entry: Mapping[str, Any], stores: Stores) -> Launch:
    found: Found = []
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


def find_runtimes(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the server that the operator starts for a VLLMRuntime."""
    found: Found = []
    spec = get_mapping(document.value, "spec")
    model, config, around = (get_mapping(spec, key) for key in ("model", "vllmConfig", "deploymentConfig"))
    path, here = ("spec", "model"), ("spec", "vllmConfig")
    words = [_name_model(document, path, model), *_read_model(document, path, model)]
    words += _switch(document, here, config, {**_CACHING, **_CHUNKING})
    words += _read_flags(document, here, _leave_empty_out(config), _CONFIG_FLAGS)
    words += get_words(document, (*here, "extraArgs"), config.get("extraArgs"), found)
    own = Environment(values={"VLLM_USE_V1": "1" if config.get("v1") is True else "0"})
    env = own | stores.read_env(document, here, config)
    image = get_mapping(around, "image")
    name = "/".join(str(part) for part in (image.get("registry"), image.get("name")) if part)
    gpus = str(get_mapping(around, "resources").get("gpu", ""))
    count = int(gpus) if gpus.isdecimal() and len(gpus) < 5 else None
    yield _launch(document, ("spec",), words, env=env, image=name, gpus=count, found=found)


def _launch(
    document: Document, path: Path, words: Sequence[Word], *, env: Environment, image: str, gpus: Any, found: Found
) -> Launch:
    return Launch(
        words=tuple(words),
        entry="serve",
        env=env,
        image=image,
        version=image_version(image),
        num_gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) else None,
        where=f"line {document.line(path)} {get_text(path)}",
        findings=tuple(found),
    )


def _name_model(document: Document, path: Path, entry: Mapping[str, Any]) -> Word:
    here = (*path, "modelURL")
    return Word(str(entry.get("modelURL") or ""), document.line(here), get_text(here))


def _read_model(document: Document, path: Path, entry: Mapping[str, Any]) -> Iterator[Word]:
    """Yield the flags of what chart and operator say of the model itself."""
    yield from _switch(document, path, entry, {key: flag for key, flag in _MODEL_SWITCHES.items() if entry.get(key)})
    yield from _read_flags(document, path, _leave_empty_out(entry), _MODEL_FLAGS)


def _leave_empty_out(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values without those that make no flag there: empty texts and 0."""
    return {key: value for key, value in values.items() if value}


def _read_flags(document: Document, path: Path, values: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[Word]:
    for key, flag in flags.items():
        if isinstance(values.get(key), (str, int, float)) and not isinstance(values[key], bool):
            place = (document.line((*path, key)), get_text((*path, key)))
            yield from (Word(flag, *place), Word(document.texts.get((*path, key), str(values[key])), *place))


def _switch(document: Document, path: Path, values: Mapping[str, Any], flags: Mapping[str, str]) -> Iterator[Word]:
    """Yield each flag, negated where its key does not say true."""
    for key, flag in flags.items():
        here = (*path, key)
        yield Word(f"--{flag}" if values.get(key) is True else f"--no-{flag}", document.line(here), get_text(here))
