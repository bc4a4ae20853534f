"""Checkpoints in the format of the speculators library: the drafter that vLLM builds from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release
from draftwise.plan.check.steps import Step

__all__ = ["Config", "find_faults", "find_incomplete", "read_layers"]

Config = Mapping[str, Any]

_BY_LAYER_TYPE: Mapping[str, Mapping[str, str]] = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
"""Speculators type -> type of its layers -> the class that vLLM builds."""
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "peagle": ("mask_token_id",),
    "dflash": ("aux_hidden_state_layer_ids", "mask_token_id"),
    "dflash2": ("aux_hidden_state_layer_ids", "mask_token_id"),
    "dspark": ("aux_hidden_state_layer_ids",),
}
"""Speculators type -> keys without which vLLM cannot convert it."""
_DSPARK = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
_DSPARK_KEYS = (
    "draft_vocab_size",
    "target_hidden_size",
    "mask_token_id",
    "markov_rank",
    "markov_head_type",
    "block_size",
    "use_aux_hidden_state",
)


def read_layers(rules: Rulebook, release: Release, config: Config, where: str) -> Step[Config | None]:
    """Return the attributes of the drafter's config object that vLLM builds, or None and yield what stops it."""
    refused = False
    for ruling in islice(find_faults(rules, release, config, where), 1):
        yield ruling
        refused = True
    if refused:
        return None
    layers = config.get("transformer_layer_config")
    convert = _CONVERTERS[str(config.get("speculators_model_type"))]
    return {**(layers if isinstance(layers, Mapping) else {}), **convert(rules, config)}


def find_faults(rules: Rulebook, release: Release, config: Config, where: str) -> Iterator[Ruling]:
    """Yield why a speculators config.json cannot be read, in vLLM's order; it stops at the first."""
    kind, readable = str(config.get("speculators_model_type")), release.table("speculators_types")
    if kind not in _CONVERTERS or kind not in readable:
        yield from rules.ruling(
            "unknown-speculators-type",
            f"The checkpoint has speculators_model_type {kind!r}; vLLM {release} reads {', '.join(readable)}.",
            where=where,
            fix="Use a release that reads this type, or convert the checkpoint.",
        )
        return
    if rules.holds("speculators-structure"):
        yield from find_incomplete(rules, config, where)
    layer_type, classes = _layer_type(config), _BY_LAYER_TYPE.get(kind)
    if classes is not None and layer_type not in classes:
        yield from rules.ruling(
            "speculators-layer-types",
            f"The checkpoint has layers of type {layer_type!r}; vLLM {release} builds these heads from "
            f"{' and '.join(classes)} layers only.",
            where=where,
            fix="Use a head of such layers.",
        )
    for key in _NEEDED.get(kind, ()):
        if key not in config:
            yield from rules.ruling(
                "speculators-key-missing",
                f"The checkpoint lacks {key!r}, which this type of drafter needs.",
                where=where,
                fix="Export the checkpoint again with the speculators library.",
            )


def find_incomplete(rules: Rulebook, config: Config, where: str) -> Iterator[Ruling]:
    """Yield that a part is missing without which nothing of the format can be read."""
    try:
        inner = config["speculators_config"]
        needed: tuple[Any, ...] = (
            inner["proposal_methods"][0]["speculative_tokens"],
            inner["verifier"]["name_or_path"],
            config["speculators_model_type"],
        )
    except (KeyError, IndexError, TypeError):
        needed = (None,)
    if None in needed or not isinstance(config.get("transformer_layer_config"), Mapping):
        yield from rules.ruling(
            "speculators-incomplete",
            "The checkpoint lacks a part of the speculators format: proposal_methods with speculative_tokens, "
            "verifier.name_or_path, speculators_model_type and transformer_layer_config.",
            where=where,
            fix="Export the checkpoint again with the speculators library.",
        )


def _layer_type(config: Config) -> str:
    layers = config.get("transformer_layer_config")
    return str(layers.get("model_type", "llama")) if isinstance(layers, Mapping) else "llama"


def _named_by_layers(rules: Rulebook, config: Config, kind: str) -> Config:
    """Return the class of an EAGLE-3 head, which later releases name after the type of its layers."""
    layer_type = _layer_type(config) if rules.holds("speculators-layer-types") else "llama"
    return {"architectures": [_BY_LAYER_TYPE[kind][layer_type]], "draft_vocab_size": config.get("draft_vocab_size")}


def _eagle3(rules: Rulebook, config: Config) -> Config:
    return _named_by_layers(rules, config, "eagle3")


def _peagle(rules: Rulebook, config: Config) -> Config:
    return {**_named_by_layers(rules, config, "peagle"), "pard_token": config["mask_token_id"]}


def _dflash(_: Rulebook, config: Config) -> Config:
    inner = {
        "mask_token_id": config["mask_token_id"],
        "target_layer_ids": config["aux_hidden_state_layer_ids"],
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "draft_vocab_size": config.get("draft_vocab_size"),
        "dflash_config": inner,
    }


def _dflash2(rules: Rulebook, config: Config) -> Config:
    return {**_dflash(rules, config), "architectures": ["DFlash2DraftModel"]}


def _dspark(_: Rulebook, config: Config) -> Config:
    named = [name for name in config.get("architectures") or () if name in _DSPARK]
    copied = {key: config[key] for key in _DSPARK_KEYS if config.get(key) is not None}
    return {**copied, "architectures": named or [_DSPARK[0]]}


_CONVERTERS: Mapping[str, Callable[[Rulebook, Config], Config]] = {
    "eagle3": _eagle3,
    "peagle": _peagle,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
}
