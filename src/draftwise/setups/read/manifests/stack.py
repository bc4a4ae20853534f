"""Values of the vLLM production-stack Helm chart: each entry of `servingEngineSpec.modelSpec`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.setups.read.manifests.parts import Found, get_mapping, get_words
from draftwise.setups.read.manifests.variables import Stores
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.images import image_version
from draftwise.setups.read.shell.launch import Launch
from draftwise.setups.read.shell.words import Word

__all__ = ["find_model_specs"]

_FLAGS: Mapping[str, str] = {
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxModelLen": "--max-model-len",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "dtype": "--dtype",
}
_SWITCHES: Mapping[str, str] = {
    "enablePrefixCaching": "--enable-prefix-caching",
    "enableChunkedPrefill": "--enable-chunked-prefill",
}


def find_model_specs(document: Document, stores: Stores) -> Iterator[Launch]:
    """Yield the servers that the chart would start."""
    for index, entry in enumerate(document.value["servingEngineSpec"]["modelSpec"]):
        if isinstance(entry, Mapping):
            yield _read(document, ("servingEngineSpec", "modelSpec", index), entry, stores)


def _read(document: Document, path: Path, entry: Mapping[str, Any], stores: Stores) -> Launch:
    found: Found = []
    env = stores.read_env(document, path, entry)
    config = get_mapping(entry, "vllmConfig")
    here = (*path, "vllmConfig")
    words = [Word(str(entry.get("modelURL") or ""), document.line((*path, "modelURL")), get_text((*path, "modelURL")))]
    for key, flag in _FLAGS.items():
        if isinstance(config.get(key), (str, int, float)):
            text = document.texts.get((*here, key), str(config[key]))
            place = (document.line((*here, key)), get_text((*here, key)))
            words += [Word(flag, *place), Word(text, *place)]
    words += [Word(flag, document.line((*here, key))) for key, flag in _SWITCHES.items() if config.get(key) is True]
    words += get_words(document, (*here, "extraArgs"), config.get("extraArgs"), found)
    image = f"{entry.get('repository') or 'vllm/vllm-openai'}:{entry.get('tag') or 'latest'}"
    gpus = entry.get("requestGPU")
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
