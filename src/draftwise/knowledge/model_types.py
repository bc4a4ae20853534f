"""Model types whose layers differ from Llama's, keys of config.json files, and types of speculators checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_data, read_rows
from draftwise.knowledge.vllm import history


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
    """Return the kinds of media that the classes of one of vLLM's model files take, if they take any."""
    files: Mapping[str, list[str]] = read_data("media_kinds")["files"]
    return frozenset(next((kinds for kinds, names in files.items() if module in names), "image video").split())


def read_config_keys() -> Mapping[str, Any]:
    """Return the keys of config.json files by what is done with them (`data/config_keys.json`)."""
    keys: Mapping[str, Any] = read_rows("config_keys")
    return keys


def read_state_layers() -> Mapping[str, Any]:
    """Return the state that layers keep for each sequence, by model type (`data/state_layers.json`)."""
    rows: Mapping[str, Any] = read_rows("state_layers")["types"]
    return rows


def read_speculators() -> Mapping[str, Any]:
    """Return what vLLM needs of the config.json of a speculators checkpoint (`data/speculators.json`)."""
    rows: Mapping[str, Any] = read_rows("speculators")
    return rows
