"""GGUF files: unpacked once into a Hugging Face checkpoint in the cache, which everything else reads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.checkpoints.gguf_files import (
    ROPE_FACTORS,
    GgufHeader,
    has_paired_rotation,
    is_gguf,
    make_config,
    read_gguf,
    rename_tensor,
)
from draftwise.checkpoints.headers import INDEX
from draftwise.checkpoints.headers import Tensor as StoredTensor
from draftwise.checkpoints.text_files import quote_some
from draftwise.core import InvalidSetup, SpecConfig, StorageError
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models.checkpoint import write_tensors
from draftwise.engine.text.gguf_tokenizer import write_tokenizer
from draftwise.machine.cache import cache_folder, one_at_a_time

__all__ = ["checkpoint_of", "unpack_models"]

_SAMPLES, _SAMPLE = 64, 65536
"""Stretches of the weights that tell one file from another of the same header, and their bytes."""
_SHARD_BYTES = 2 * 2**30
_ROOM = 1.05
"""Of a checkpoint's weights: what it takes on disk."""


def checkpoint_of(model: str, say: Callable[[str], None] = lambda _text: None) -> str:
    """Return the checkpoint folder of a model: for a GGUF file the one it is unpacked into, else what was given.

    Processes that ask at the same time wait for the one that unpacks. A folder is there whole or not at all.

    Args:
        model: a folder, a name or a GGUF file.
        say: is told of the unpacking before it begins.

    Raises:
        InvalidSetup: the file is damaged, or holds a model that is not supported; all of it is found before the first
            weight is read.
        StorageError: the cache has no room for it.
    """
    if not is_gguf(model):
        return model
    header = read_gguf(model)
    folder = cache_folder() / "gguf" / _identify(header)
    with one_at_a_time("gguf"):
        if not folder.is_dir():
            say(f"Unpacking {Path(model).name} into {folder}")
            _unpack(header, folder)
    return str(folder)


def unpack_models(
    config: EngineConfig, spec: SpecConfig | None, say: Callable[[str], None] = lambda _text: None
) -> tuple[EngineConfig, SpecConfig | None]:
    """Return what to build with the checkpoint folders of its models, see `checkpoint_of`."""
    if spec is not None and spec.model is not None:
        spec = replace(spec, model=checkpoint_of(spec.model, say))
    return replace(config, model=checkpoint_of(config.model, say)), spec


def _identify(header: GgufHeader) -> str:
    """Return a digest over the header and samples of the weights: reading all of them takes as long as loading."""
    size, start = header.file.stat().st_size, min(each.start for each in header.tensors.values())
    hashed = hashlib.sha256(str(size).encode())
    with header.file.open("rb") as stream:
        hashed.update(stream.read(start))
        for i in range(_SAMPLES):
            stream.seek(start + (size - start) * i // _SAMPLES)
            hashed.update(stream.read(_SAMPLE))
    return hashed.hexdigest()[:24]


def _unpack(header: GgufHeader, folder: Path) -> None:
    config = make_config(header)
    places = _find_places(header)
    dtype: torch.dtype = getattr(torch, config["torch_dtype"])
    needed = int(sum(each.num_elements for each in header.tensors.values()) * dtype.itemsize * _ROOM)
    part = folder.with_suffix(".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        if (free := shutil.disk_usage(part).free) < needed:
            raise OSError(f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
        write_tokenizer(header, part)
        _write_weights(header, places, config, dtype, part)
        ends = [config.get("eos_token_id"), header.metadata.get("tokenizer.ggml.eot_token_id")]
        _write_json(part / "generation_config.json", {"eos_token_id": sorted({end for end in ends if end is not None})})
        _write_json(part / "config.json", {"_name_or_path": header.file.name} | config)
        os.replace(part, folder)
    except OSError as error:
        raise StorageError(
            f"{header.file.name} cannot be unpacked into {folder.parent} ({error.strerror or error}). Make room there, "
            "or set DRAFTWISE_CACHE_DIR to a folder that has it."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_json(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _find_places(header: GgufHeader) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the checkpoint.

    Raises:
        InvalidSetup: one of them has no place there, so that the network is another than its architecture says.
    """
    given = {name: each for name, each in header.tensors.items() if name != ROPE_FACTORS}
    if strange := sorted(name for name in given if rename_tensor(name) is None):
        raise InvalidSetup.because(
            "unsupported-architecture",
            f"The file holds tensors that no {header.architecture} has: {quote_some(strange)}.",
            where=str(header.file),
            fix="Use the model's own checkpoint.",
        )
    return {str(rename_tensor(name)): each for name, each in given.items()}


def _write_weights(
    header: GgufHeader, places: dict[str, StoredTensor], config: dict[str, Any], dtype: torch.dtype, folder: Path
) -> None:
    shards = list(_share_out(places, dtype))
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        write_tensors(folder / file, {name: _read(header, name, places[name], config).to(dtype) for name in names})
    index = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    _write_json(folder / INDEX, {"metadata": {}, "weight_map": index})


def _share_out(places: dict[str, StoredTensor], dtype: torch.dtype) -> Iterator[list[str]]:
    """Yield the names of each shard: what is in memory at a time."""
    shard: list[str] = []
    size = 0
    for name, each in places.items():
        shard.append(name)
        size += each.num_elements * dtype.itemsize
        if size >= _SHARD_BYTES:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _read(header: GgufHeader, name: str, stored: StoredTensor, config: dict[str, Any]) -> Tensor:
    """Return a tensor's values, its rows in the order of the checkpoint; F32 unless it is stored as F16."""
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize

    data = np.memmap(header.file, np.uint8, "r", stored.start, (stored.num_bytes,))
    rows = data.reshape(*stored.shape[:-1], -1)
    values = dequantize(rows, GGMLQuantizationType[stored.dtype]).reshape(stored.shape)
    tensor = torch.from_numpy(np.require(values, requirements=("C", "W")))  # what is stored as F32 is the file itself
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or not has_paired_rotation(header):
        return tensor
    return tensor.unflatten(0, (config[heads], -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
