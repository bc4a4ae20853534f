"""Checkpoints in the format of the speculators library: what vLLM reads from them, as drafter and as served model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwise.core import Ruling, Stage
from draftwise.facts.rules import Rule, get_rule
from draftwise.facts.vllm import Release

__all__ = ["ServedSpeculators", "SpeculatorsFault", "read_served", "to_layer_config"]

Config = Mapping[str, Any]

_ALIASES: Mapping[str, Mapping[str, Any]] = {
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "dflash2": {"method": "dflash"},
}
"""Speculators types that vLLM runs under another method."""

_HUB_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_EAGLE3_BY_TYPE = {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"}
_PEAGLE_BY_TYPE = {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"}
_DSPARK = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
_DSPARK_KEYS = (
    "draft_vocab_size", "target_hidden_size", "mask_token_id", "markov_rank", "markov_head_type", "block_size",
    "use_aux_hidden_state",
)  # fmt: skip


class SpeculatorsFault(Exception):  # noqa: N818  (it carries a finding)
    """The checkpoint cannot be read; `ruling` says why."""

    def __init__(self, ruling: Ruling) -> None:
        super().__init__(ruling.message)
        self.ruling = ruling


def to_layer_config(release: Release, config: Config, where: str) -> Config:
    """Return the attributes of the drafter's config object that vLLM builds from a speculators config.json.

    Raises:
        SpeculatorsFault: the type or its layers are not supported, or a key that they need is missing.
    """
    kind = config.get("speculators_model_type")
    convert = _CONVERTERS.get(str(kind))
    if convert is None or kind not in release.table("speculators_types"):
        known = ", ".join(release.table("speculators_types"))
        raise _fault("unknown-speculators-type", f"has speculators_model_type {kind!r}; vLLM {release} reads {known}.",
                     where, "Use a release that reads this type, or convert the checkpoint.")  # fmt: skip
    if get_rule("speculators-structure").holds(release.version):
        _check_structure(config, where)
    layers = config.get("transformer_layer_config")
    return {**(layers if isinstance(layers, Mapping) else {}), **convert(release, config, where)}


@dataclass(frozen=True, slots=True)
class ServedSpeculators:
    """A speculators checkpoint given as the model to serve: it names the real target and the speculation itself."""

    verifier: str
    spec: Config | None
    """The speculative JSON that vLLM goes on with; None for no speculation."""
    rulings: tuple[Ruling, ...]


def read_served(release: Release, name: str, config: Config, spec: Config | None) -> ServedSpeculators | None:
    """Return what vLLM serves for a speculators checkpoint; None for any other, and in releases without the format.

    Args:
        release: which release reads it.
        name: how the model was given; it becomes the drafter.
        config: its config.json.
        spec: the operator's own speculative JSON.

    Raises:
        SpeculatorsFault: a part is missing.
    """
    if config.get("speculators_config") is None or not get_rule("speculators-format").holds(release.version):
        return None
    try:
        _check_structure(config, name)
        verifier = _read_verifier(release, config, name)
        if spec is not None and get_rule("speculators-user-json-wins").holds(release.version):
            return ServedSpeculators(verifier, spec, ())
        lost = get_rule("speculators-settings-lost")
        if spec is None and lost.holds(release.version):
            return ServedSpeculators(verifier, None, (_tell_lost(lost),))
        if get_rule("speculators-structure").holds(release.version):
            to_layer_config(release, config, name)
    except SpeculatorsFault as fault:
        # Nothing wraps the ValueError here, before any config object is made.
        raise SpeculatorsFault(replace(fault.ruling, stage=Stage.ENGINE, exception="ValueError")) from None
    kind = config["speculators_model_type"]
    tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    own = {"method": kind, **_find_alias(release, kind), "num_speculative_tokens": tokens}
    if spec is None:
        return ServedSpeculators(verifier, {**own, "model": name}, ())
    rulings = tuple(_tell_replaced(release, own, name, spec))
    kept = spec if get_rule("speculators-json-merged").holds(release.version) else {}
    return ServedSpeculators(verifier, {**own, **kept, "method": own["method"], "model": name}, rulings)


def _tell_lost(rule: Rule) -> Ruling:
    return rule.ruling(
        "is a speculators checkpoint; this release serves its verifier without any speculation.", where="target",
        fix="Name the verifier as the model and this checkpoint in the JSON.", becomes="no speculation",
    )  # fmt: skip


def _find_alias(release: Release, kind: str) -> Config:
    is_known = isinstance(kind, str) and kind in release.table("speculators_types")
    return _ALIASES.get(kind, {}) if is_known else {}


def _read_verifier(release: Release, config: Config, name: str) -> str:
    """Return the name of the served model; some releases take only names of the hub."""
    verifier = str(config["speculators_config"]["verifier"]["name_or_path"])
    rule = get_rule("speculators-local-verifier")
    if rule.holds(release.version) and (not _HUB_NAME.fullmatch(verifier) or Path(verifier).exists()):
        ruling = rule.ruling(f"names a local directory, {verifier!r}, as its verifier.", where=name,
                             fix="Name the verifier as the model and this checkpoint in the JSON.")  # fmt: skip
        raise SpeculatorsFault(ruling)
    return verifier


def _tell_replaced(release: Release, own: Config, name: str, spec: Config) -> Iterator[Ruling]:
    locked = {"method": own["method"], "model": name}
    merged = get_rule("speculators-json-merged")
    if merged.holds(release.version):
        lost = [key for key, value in locked.items() if key in spec and spec[key] != value]
        if lost:
            yield merged.ruling(
                f"is a speculators checkpoint, which fixes {' and '.join(lost)}: the JSON's are dropped.",
                where="target", fix=f"Leave {' and '.join(lost)} out of the JSON.", becomes=str(locked),
            )  # fmt: skip
        return
    replaced = get_rule("speculators-json-replaced")
    if replaced.holds(release.version) and any(own.get(key, locked.get(key)) != value for key, value in spec.items()):
        yield replaced.ruling(
            "is a speculators checkpoint; its own settings replace the whole speculative JSON.",
            where="target", fix="Serve the verifier as the model, and name this checkpoint as `model` in the JSON.",
            becomes=str({**own, "model": name}),
        )  # fmt: skip


def _check_structure(config: Config, where: str) -> None:
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
        raise _fault("speculators-incomplete", "lacks a part of the speculators format: proposal_methods with "
                     "speculative_tokens, verifier.name_or_path, speculators_model_type and transformer_layer_config.",
                     where, "Export the checkpoint again with the speculators library.")  # fmt: skip


def _fault(code: str, message: str, where: str, fix: str) -> SpeculatorsFault:
    return SpeculatorsFault(get_rule(code).ruling(message, where=where, fix=fix))


def _by_layer_type(release: Release, config: Config, where: str, names: Mapping[str, str]) -> Config:
    if not get_rule("speculators-layer-types").holds(release.version):
        return {"architectures": [names["llama"]]}
    layers = config.get("transformer_layer_config")
    layer_type = str(layers.get("model_type", "llama")) if isinstance(layers, Mapping) else "llama"
    if layer_type not in names:
        raise _fault("speculators-layer-types", f"has layers of type {layer_type!r}; vLLM {release} builds these "
                     f"heads from {' and '.join(names)} layers only.", where, "Use a head of such layers.")  # fmt: skip
    return {"architectures": [names[layer_type]]}


def _eagle3(release: Release, config: Config, where: str) -> Config:
    return {
        **_by_layer_type(release, config, where, _EAGLE3_BY_TYPE),
        "draft_vocab_size": config.get("draft_vocab_size"),
    }


def _peagle(release: Release, config: Config, where: str) -> Config:
    return {
        **_by_layer_type(release, config, where, _PEAGLE_BY_TYPE),
        "draft_vocab_size": config.get("draft_vocab_size"),
        "pard_token": _need(config, "mask_token_id", where),
    }


def _dflash(release: Release, config: Config, where: str) -> Config:
    del release
    layer_ids = _need(config, "aux_hidden_state_layer_ids", where)
    mask = _need(config, "mask_token_id", where)
    return {
        "architectures": ["DFlashDraftModel"],
        "draft_vocab_size": config.get("draft_vocab_size"),
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": layer_ids},
    }


def _dflash2(release: Release, config: Config, where: str) -> Config:
    return {**_dflash(release, config, where), "architectures": ["DFlash2DraftModel"]}


def _dspark(release: Release, config: Config, where: str) -> Config:
    del release
    _need(config, "aux_hidden_state_layer_ids", where)
    named = [name for name in config.get("architectures") or () if name in _DSPARK]
    copied = {key: config[key] for key in _DSPARK_KEYS if config.get(key) is not None}
    return {**copied, "architectures": named or [_DSPARK[0]]}


def _need(config: Config, key: str, where: str) -> Any:
    if key not in config:
        raise _fault("speculators-key-missing", f"lacks {key!r}, which this type of drafter needs.", where,
                     "Export the checkpoint again with the speculators library.")  # fmt: skip
    return config[key]


_CONVERTERS: Mapping[str, Callable[[Release, Config, str], Config]] = {
    "eagle3": _eagle3,
    "peagle": _peagle,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
}
