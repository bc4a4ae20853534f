"""Checkpoints in the format of the speculators library: what vLLM reads from them, as drafter and as served model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from draftwise.core import Ruling, Stage
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release
from draftwise.plan.check.steps import Step
from draftwise.plan.model_config import ModelConfig

__all__ = ["read_layers", "read_served"]

Config = Mapping[str, Any]

_ALIASES: Mapping[str, Mapping[str, Any]] = {
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "dflash2": {"method": "dflash"},
}
"""Speculators types that vLLM runs under another method."""

_HUB_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
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
    for ruling in islice(_find_faults(rules, release, config, where), 1):
        yield ruling
        refused = True
    if refused:
        return None
    layers = config.get("transformer_layer_config")
    convert = _CONVERTERS[str(config.get("speculators_model_type"))]
    return {**(layers if isinstance(layers, Mapping) else {}), **convert(rules, config)}


def _find_faults(rules: Rulebook, release: Release, config: Config, where: str) -> Iterator[Ruling]:
    """Yield why a speculators config.json cannot be read, in vLLM's order; it stops at the first."""
    kind, readable = config.get("speculators_model_type"), release.table("speculators_types")
    if str(kind) not in _CONVERTERS or kind not in readable:
        yield from rules.ruling(
            "unknown-speculators-type",
            f"The checkpoint has speculators_model_type {kind!r}; vLLM {release} reads {', '.join(readable)}.",
            where=where,
            fix="Use a release that reads this type, or convert the checkpoint.",
        )
        return
    if rules.holds("speculators-structure"):
        yield from _find_incomplete(rules, config, where)
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


def _find_incomplete(rules: Rulebook, config: Config, where: str) -> Iterator[Ruling]:
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


Served = tuple[str | None, Config | None]
"""Name of the model that is served in the checkpoint's stead (None: no other), and the speculative JSON."""


def read_served(
    rules: Rulebook, release: Release, name: str, model: ModelConfig | None, spec: Config | None
) -> Step[Served]:
    """Return what vLLM serves, and with which speculation, for a model that may be a speculators checkpoint.

    Such a checkpoint names the real target and the speculation itself. Any other model, one that cannot be read, and
    every model in releases without the format is served as it is, with the JSON as written.

    Args:
        rules: of the release.
        release: which reads the checkpoint.
        name: how the model was given; it becomes the drafter.
        model: its config.json.
        spec: the operator's own speculative JSON.
    """
    as_written: Served = (None, spec)
    if model is None or model.config.get("speculators_config") is None or not rules.holds("speculators-format"):
        return as_written
    config = model.config
    faults = [*_find_incomplete(rules, config, name)] or [*_find_local_verifier(rules, config, name)]
    if not faults and _reads_layers(rules, spec):
        faults = [*islice(_find_faults(rules, release, config, name), 1)]
    if faults:
        # Nothing wraps the ValueError here, before any config object is made.
        yield replace(faults[0], stage=Stage.ENGINE, exception="ValueError")
        return as_written
    verifier = _verifier(config)
    if spec is not None and rules.holds("speculators-user-json-wins"):
        return verifier, spec
    if spec is None and rules.holds("speculators-settings-lost"):
        yield from _find_lost(rules)
        return verifier, None
    own = _own_settings(release, config)
    if spec is None:
        return verifier, {**own, "model": name}
    yield from _find_replaced(rules, own, name, spec)
    kept = spec if rules.holds("speculators-json-merged") else {}
    return verifier, {**own, **kept, "method": own["method"], "model": name}


def _reads_layers(rules: Rulebook, spec: Config | None) -> bool:
    """Say whether the release converts the layers while it looks for the served model."""
    if not rules.holds("speculators-structure"):
        return False
    return not rules.holds("speculators-user-json-wins" if spec is not None else "speculators-settings-lost")


def _own_settings(release: Release, config: Config) -> Config:
    kind = config["speculators_model_type"]
    tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    is_known = isinstance(kind, str) and kind in release.table("speculators_types")
    return {"method": kind, **(_ALIASES.get(kind, {}) if is_known else {}), "num_speculative_tokens": tokens}


def _verifier(config: Config) -> str:
    return str(config["speculators_config"]["verifier"]["name_or_path"])


def _find_local_verifier(rules: Rulebook, config: Config, name: str) -> Iterator[Ruling]:
    """Yield the refusal of a verifier on disk: some releases take only names of the hub."""
    verifier = _verifier(config)
    if not _HUB_NAME.fullmatch(verifier) or Path(verifier).exists():
        yield from rules.ruling(
            "speculators-local-verifier",
            f"The speculators checkpoint names a local directory, {verifier!r}, as its verifier.",
            where=name,
            fix="Name the verifier as the model and this checkpoint in the JSON.",
        )


def _find_lost(rules: Rulebook) -> Iterator[Ruling]:
    yield from rules.ruling(
        "speculators-settings-lost",
        "The target is a speculators checkpoint; this release serves its verifier without any speculation.",
        where="target",
        fix="Name the verifier as the model and this checkpoint in the JSON.",
        becomes="no speculation",
    )


def _find_replaced(rules: Rulebook, own: Config, name: str, spec: Config) -> Iterator[Ruling]:
    locked = {"method": own["method"], "model": name}
    lost = [key for key, value in locked.items() if key in spec and spec[key] != value]
    if lost:
        yield from rules.ruling(
            "speculators-json-merged",
            f"The target is a speculators checkpoint, which fixes {' and '.join(lost)}: the JSON's are dropped.",
            where="target",
            fix=f"Leave {' and '.join(lost)} out of the JSON.",
            becomes=str(locked),
        )
    if any(own.get(key, locked.get(key)) != value for key, value in spec.items()):
        yield from rules.ruling(
            "speculators-json-replaced",
            "The target is a speculators checkpoint; its own settings replace the whole speculative JSON.",
            where="target",
            fix="Serve the verifier as the model, and name this checkpoint as `model` in the JSON.",
            becomes=str({**own, "model": name}),
        )


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
