"""Facts about models: layers by model type, keys of config.json, transformers' defaults, quantization methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from packaging.version import Version

from draftwise.knowledge.stored import read_data, read_rows
from draftwise.knowledge.vllm import get_release, history

_TOPIC = "quantization_methods"


def is_deprecated(method: str, version: Version) -> bool:
    """Return whether a release loads a method only with `allow_deprecated_quantization`."""
    row = get_release(str(version)).table(_TOPIC).get(method)
    return row is not None and bool(row["deprecated"])


def needs_checkpoint(method: str) -> bool:
    """Return whether a method needs a quantized checkpoint, rather than quantizing while it loads.

    The newest release with the method decides.
    """
    spans = history(_TOPIC, method)
    return bool(spans) and bool(spans[-1].value["needs_checkpoint"])


def reads_weights_of(method: str, checkpoint: str) -> bool:
    """Return whether a method runs weights that a checkpoint declares for another, such as gptq_marlin for gptq."""
    data = read_data("quantization")
    return method in data["same_weights"].get(checkpoint, (checkpoint,)) or method in data["every_checkpoint"]


def find_plugin(method: str) -> str | None:
    """Return the package that registers a method missing from vLLM itself; None for any other method."""
    found: str | None = read_data("quantization")["of_plugins"].get(method)
    return found


def runs_in_float32(method: str) -> bool:
    """Return whether any release runs a method in float32."""
    return method not in read_data("quantization")["never_in_float32"]


def find_model_type(name: str) -> Mapping[str, Any] | None:
    """Return the row of a model type; None if transformers does not have it, nor vLLM (`library`).

    A row may hold `vocab_size`, `max_position_embeddings`, `num_attention_heads`, `chunk_size` and `rope_parameters`
    (values that a config.json may leave out), `rename` (names that draftwise reads -> the type's own spelling, such as
    GPT-2's `n_head`) and `model_class` (the architecture of a config without `architectures`).
    """
    row: Mapping[str, Any] | None = read_data("transformers")["types"].get(name)
    return row


def fill_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the additions of its transformers class: defaults, and common names of attributes."""
    known = find_model_type(str(config.get("model_type") or ""))
    if known is None:
        return config
    names = ("vocab_size", "max_position_embeddings", "num_attention_heads", "rope_parameters")
    defaults = {name: known[name] for name in names if name in known}
    if config.get("rope_scaling"):
        defaults.pop("rope_parameters", None)
    return {**defaults, **rename(config)}


def with_positions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the longest context that its transformers class has, if it names none."""
    known = find_model_type(str(config.get("model_type") or "")) or {}
    return {name: known[name] for name in ("max_position_embeddings",) if name in known} | {**config}


def rename(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with common names for the attributes that its type renames."""
    known = find_model_type(str(config.get("model_type") or "")) or {}
    return {**{name: config[own] for name, own in known.get("rename", {}).items() if own in config}, **config}


def is_buildable(architecture: str, *, by_attention: bool) -> bool:
    """Return whether vLLM's Transformers backend can build a class that vLLM itself lacks.

    Args:
        architecture: name of the class.
        by_attention: whether the backend also accepts classes that can only set their attention implementation.
    """
    return architecture in _names("buildable") or (by_attention and architecture in _names("own_attention"))


@cache
def _names(part: str) -> frozenset[str]:
    return frozenset(read_data("transformers")[part])


@cache
def types_with(trait: str) -> frozenset[str]:
    """Return the model types that have a trait of `data/model_types.json`; KeyError for an unknown trait."""
    return frozenset(read_data("model_types")[trait]["types"])


def find_matrices(config: Mapping[str, Any]) -> int:
    """Return the matrices of a feed-forward layer: 2 without a gate, by the newest release that shows it; else 3."""
    named = config.get("architectures")
    spans = history("feed_forward", str(named[0])) if isinstance(named, list | tuple) and named else ()
    return 2 if spans and spans[-1].value == "plain" else 3


@cache
def find_media(module: str) -> frozenset[str]:
    """Return the kinds of media that the classes of a vLLM model file accept, if any."""
    files: Mapping[str, list[str]] = read_data("media_kinds")["files"]
    return frozenset(next((kinds for kinds, names in files.items() if module in names), "image video").split())


def read_config_keys() -> Mapping[str, Any]:
    """Return the keys of config.json files by their use (`data/config_keys.json`)."""
    keys: Mapping[str, Any] = read_rows("config_keys")
    return keys


def read_state_layers() -> Mapping[str, Any]:
    """Return the state that layers keep for each sequence, by model type (`data/state_layers.json`)."""
    rows: Mapping[str, Any] = read_rows("state_layers")["types"]
    return rows


def read_speculators() -> Mapping[str, Any]:
    """Return what vLLM needs in the config.json of a speculators checkpoint (`data/speculators.json`)."""
    rows: Mapping[str, Any] = read_rows("speculators")
    return rows
