"""Recognizes a checkpoint's drafter by its features; converts `speculators` configs into vLLM's plain ones, and back.

Source: speculators 0.9.0 (https://github.com/vllm-project/speculators, `models/*/config.py`) and vLLM 0.32's
`transformers_utils/configs/speculators`. Tensors have the same names in both formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftwise.checkpoints.config_values import (
    AUX_KEY,
    MASK_KEYS,
    AuxLayers,
    find_aux_layers,
    find_mask_token,
    get_ints,
    get_mapping,
)
from draftwise.checkpoints.headers import MTP, role_of
from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.methods import Method, all_methods, methods_where


def find_by_architecture(architecture: str) -> Method | None:
    """Return the first method with a name part that the architecture contains; None without one."""
    return _find_architecture(methods_where().values(), architecture)


def find_by_marks(config: Mapping[str, Any], architecture: str, names: Collection[str]) -> Method:
    """Return the method of a checkpoint; `draft_model` for a whole language model, which may be a target.

    Args:
        config: plain config.json.
        architecture: its first architecture; may be empty. Some, such as `LlamaForCausalLM`, do not show the method.
        names: names of its tensors.

    Raises:
        InvalidSetup: no method of the table matches, and an installed package's method cannot be used.
    """
    return (
        _find_marked(methods_where().values(), config, architecture, names)
        or _find_marked([each for each in all_methods().values() if each.distribution], config, architecture, names)
        or next(iter(methods_where(drafts_from="own_model").values()))
    )


def _find_marked(
    methods: Collection[Method], config: Mapping[str, Any], architecture: str, names: Collection[str]
) -> Method | None:
    """Return the method of which a checkpoint has a mark: the more telling marks of all methods go before others."""
    return (
        _first(methods, lambda method: config.get("model_type") in method.model_types)
        or _find_architecture(methods, architecture)
        or _first(methods, lambda method: bool(method.recognizer) and method.load("recognizer")(config, names))
        or _first(methods, lambda method: any(_begins(names, re.compile(pattern)) for pattern in method.tensors))
        or _first(methods, lambda method: any(key in config for key in method.config_keys))
    )


def _find_architecture(methods: Collection[Method], architecture: str) -> Method | None:
    name = architecture.lower()
    return _first(methods, lambda method: any(part in name for part in method.architectures))


def _begins(names: Collection[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.match(name) for name in names)


def _first(methods: Collection[Method], has_mark: Callable[[Method], bool]) -> Method | None:
    return next(filter(has_mark, methods), None)


def holds_native_modules(_config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return whether a checkpoint holds only multi-token prediction modules, without their target."""
    return bool(names) and all(role_of(name) == MTP for name in names)


_Config = Mapping[str, Any]


def to_plain(config: _Config, *, where: str) -> dict[str, Any]:
    """Return a drafter's config.json in the plain format; a plain one is returned as it is.

    Args:
        config: config.json as read; not modified.

    Raises:
        InvalidSetup: it is not a known speculator, or lacks a field.
    """
    if fault := find_format_fault(config, where=where):
        raise InvalidSetup(fault)
    return flatten(config)


def find_format_fault(config: _Config, *, where: str) -> Finding | None:
    """Return why a config.json in speculators format cannot be read; None for a plain one."""
    name = config.get("speculators_model_type")
    if name is None:
        return None
    if (kind := _KINDS.get(str(name))) is None:
        code, message = "unknown-speculators-type", f"The checkpoint has speculators_model_type {name!r}."
        fix = f"Use a checkpoint of one of {', '.join(_KINDS)}."
    elif not isinstance(config.get("transformer_layer_config"), Mapping):
        code, message = "speculators-incomplete", "The checkpoint's config.json lacks transformer_layer_config."
        fix = "Export the checkpoint again with the speculators library."
    elif missing := [key for key in kind.needed if config.get(key) is None]:
        code, message = "speculators-key-missing", f"The checkpoint's config.json lacks {', '.join(missing)}."
        fix = "Export the checkpoint again with the speculators library."
    else:
        return None
    return Finding.error(code, message, where=where, fix=fix)


def flatten(config: _Config) -> dict[str, Any]:
    """Return the plain form of a config.json, without damaged parts.

    The fields of `transformer_layer_config` become the config, and the algorithm's own fields join them under their
    plain names. Defaults differ between the formats: here `norm_before_residual` is true for eagle3, but false for
    peagle and in plain files. dflash numbers the layers that it reads as EAGLE-3 does, one higher than the plain
    `target_layer_ids`.
    """
    name = config.get("speculators_model_type")
    if name is None:
        return dict(config)
    kind = _KINDS.get(str(name))
    shared = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    return {
        **get_mapping(config, "transformer_layer_config"),
        **shared,
        **({} if kind is None else kind.to_plain(config)),
    }


def from_plain(config: _Config, *, verifier: str, k: int, where: str = "config.json") -> dict[str, Any]:
    """Return a drafter's plain config.json in speculators format.

    Args:
        config: plain config of an EAGLE-3, P-EAGLE (EAGLE-3 with a mask token) or DFlash drafter.
        verifier: name or path of the target, which `vllm serve DRAFTER` uses exactly as written.
        k: draft tokens per step in such a server.

    Raises:
        InvalidSetup: the format does not support this kind of drafter, or one of its settings.
    """
    name, kind = _find_kind(config, where)
    assert kind.from_plain is not None
    own = kind.from_plain(config, where)
    return {
        "architectures": [kind.architecture],
        "speculators_model_type": name,
        "speculators_config": {
            "algorithm": name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "draft_vocab_size": config.get("draft_vocab_size") or config["vocab_size"],
        **{key: config[key] for key in ("target_hidden_size", "block_size") if config.get(key) is not None},
        **own,
        "transformer_layer_config": {key: value for key, value in config.items() if key not in _OWN_KEYS},
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one algorithm's own fields translate."""

    needed: tuple[str, ...]
    """Fields without which its file says too little."""
    to_plain: Callable[[_Config], dict[str, Any]]
    architecture: str = ""
    """The library's name of it."""
    from_plain: Callable[[_Config, str], dict[str, Any]] | None = None
    """None: it is read, and not written."""


_EAGLE_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_SHARED_KEYS = (
    *("draft_vocab_size", "target_hidden_size", "block_size", "mask_token_id", "use_aux_hidden_state"),
    *("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
    *("quantization_config", "tie_word_embeddings"),
)
"""Fields of the library's own config that have the same name and meaning in a plain one."""
_LAYER_KEYS = ("quantization_config", "tie_word_embeddings")
_OWN_KEYS = frozenset(
    {
        *("architectures", "dflash_config", "eagle_config", "target_layer_ids", AUX_KEY),
        *(key for key in _SHARED_KEYS if key not in _LAYER_KEYS),
        *(*_EAGLE_FLAGS, *MASK_KEYS),
    }
)
"""Fields of a plain config that are the drafter's and not its decoder layers'."""


def _eagle3_to_plain(config: _Config) -> dict[str, Any]:
    return {
        "architectures": _eagle_architecture(config, "Eagle3"),
        **_eagle_flags(config),
        "norm_before_residual": bool(config.get("norm_before_residual", True)),
        **_aux_ids(config),
    }


def _peagle_to_plain(config: _Config) -> dict[str, Any]:
    return {
        "architectures": _eagle_architecture(config, "Peagle"),
        **_eagle_flags(config),
        "pard_token": config.get("mask_token_id"),
        **_aux_ids(config),
    }


def _eagle_flags(config: _Config) -> dict[str, Any]:
    return {key: bool(config.get(key, False)) for key in _EAGLE_FLAGS}


def _eagle_architecture(config: _Config, prefix: str) -> list[str]:
    model_type = str(get_mapping(config, "transformer_layer_config").get("model_type", "llama"))
    return [f"{prefix}{model_type.capitalize()}ForCausalLM"]


def _aux_ids(config: _Config) -> dict[str, Any]:
    return {AUX_KEY: config[AUX_KEY]} if config.get(AUX_KEY) else {}


def _dflash_to_plain(config: _Config) -> dict[str, Any]:
    own = _block_to_plain(config)
    if config.get("sample_from_anchor"):
        own["dflash_config"]["sample_from_anchor"] = True
    # The flag speaks of sliding layers only: the library trains full ones without causality whatever it says. vLLM
    # 0.32 takes it for all layers (vllm-project/vllm#56692). Unsaid, a plain config means causal sliding layers.
    if config.get("sliding_window_non_causal", True):
        own["dflash_config"]["causal"] = False
    return {"architectures": ["DFlashDraftModel"], **own}


def _dflash2_to_plain(config: _Config) -> dict[str, Any]:
    return {**_dflash_to_plain(config), "architectures": ["DFlash2DraftModel"]}


def _dspark_to_plain(config: _Config) -> dict[str, Any]:
    named = config.get("architectures")
    known = [name for name in named if name in _DSPARK_CLASSES] if isinstance(named, list) else []
    return {"architectures": known or [_DSPARK_CLASSES[0]], **_block_to_plain(config)}


_DSPARK_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
"""vLLM's classes of it; the library's own name stands for the first."""


def _block_to_plain(config: _Config) -> dict[str, Any]:
    """Return what the drafters that fill in a block have in common."""
    own: dict[str, Any] = {"mask_token_id": config.get("mask_token_id")}
    aux_ids = get_ints(config, "aux_hidden_state_layer_ids")
    if aux_ids is None:
        return {"dflash_config": own}
    return {AUX_KEY: list(aux_ids), "dflash_config": own | {"target_layer_ids": [i - 1 for i in aux_ids]}}


def _eagle3_from_plain(config: _Config, _where: str) -> dict[str, Any]:
    layers = find_aux_layers(config)
    aux_ids = layers.ids if layers is not None else get_mapping(config, "eagle_config").get("layer_ids")
    return _eagle_flags(config) | ({AUX_KEY: list(aux_ids)} if aux_ids else {})


def _peagle_from_plain(config: _Config, where: str) -> dict[str, Any]:
    return {**_eagle3_from_plain(config, where), "mask_token_id": find_mask_token(config)}


def _dflash_from_plain(config: _Config, where: str) -> dict[str, Any]:
    own, layers, mask_token_id = config.get("dflash_config") or {}, find_aux_layers(config), find_mask_token(config)
    known = ("mask_token_id", "target_layer_ids", "causal", "sample_from_anchor")
    lost = [f"dflash_config.{key}" for key, value in own.items() if value and key not in known]
    layer_types = config.get("layer_types") or ["full_attention"]
    if own.get("causal") and "full_attention" in layer_types:
        lost.append("dflash_config.causal over full attention")
    if lost or layers is None or mask_token_id is None:
        wrong = f"cannot express {', '.join(lost)}" if lost else "needs target_layer_ids and mask_token_id"
        raise _inexpressible(
            f"The speculators format {wrong}.",
            where,
            "Export the plain format; vLLM loads it with `model` in its speculative config.",
        )
    sliding_causal = "sliding_attention" in layer_types and own.get("causal") is not False
    return {
        "aux_hidden_state_layer_ids": list(layers.ids),
        "mask_token_id": mask_token_id,
        "sample_from_anchor": bool(own.get("sample_from_anchor", False)),
        "sliding_window_non_causal": not sliding_causal,
    }


def _find_kind(config: _Config, where: str) -> tuple[str, _Kind]:
    """Return the kind that a plain config is written as: with masks where it names a mask token."""
    architectures = config.get("architectures") or []
    method = find_by_architecture(" ".join(architectures))
    masked = find_mask_token(config) is not None
    names = [name for name in (method.speculators if method else ()) if _KINDS[name].from_plain]
    if not names:
        raise _inexpressible(
            f"Architecture {', '.join(architectures) or 'unknown'} has no speculators format.",
            where,
            "It holds EAGLE-3, P-EAGLE and DFlash drafters; export others in the plain format.",
        )
    fitting = [name for name in names if ("mask_token_id" in _KINDS[name].needed) == masked]
    name = (fitting or names)[0]
    return name, _KINDS[name]


def _inexpressible(message: str, where: str, fix: str) -> InvalidSetup:
    return InvalidSetup.because("not-in-speculators-format", message, where=where, fix=fix)


_BLOCK_KEYS = ("mask_token_id", "aux_hidden_state_layer_ids")
_KINDS: Mapping[str, _Kind] = {
    "eagle3": _Kind((), _eagle3_to_plain, "Eagle3Speculator", _eagle3_from_plain),
    "peagle": _Kind(("mask_token_id",), _peagle_to_plain, "PEagleSpeculator", _peagle_from_plain),
    "dflash": _Kind(_BLOCK_KEYS, _dflash_to_plain, "DFlashSpeculator", _dflash_from_plain),
    "dflash2": _Kind(_BLOCK_KEYS, _dflash2_to_plain),
    "dspark": _Kind(_BLOCK_KEYS, _dspark_to_plain),
}
"""Key: `speculators_model_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizedDrafter:
    """A drafter as recognized from its checkpoint."""

    method: str
    """vLLM's method name; `draft_model` for a whole language model, which may also be a target."""
    traits: Method
    """Facts about the method."""
    layout: Literal["plain", "speculators"]
    algorithm: str
    """`speculators_model_type`, else the method."""
    config: Mapping[str, Any]
    """Plain fields, from either format."""
    architecture: str
    """First architecture; empty if config.json names none."""
    parallel: bool
    """Whether it drafts all tokens in one pass over masked tokens."""
    mask_token_id: int | None
    aux_layers: AuxLayers | None
    """None if it does not read states of several layers, or if the config does not say which."""

    @property
    def is_head(self) -> bool:
        """Whether it runs on the target's hidden states rather than as a separate model."""
        return self.traits.drafts_from == "target_states"


def recognize(config: Mapping[str, Any], names: Collection[str]) -> RecognizedDrafter:
    """Return the drafter that a config.json and tensor names describe."""
    algorithm = config.get("speculators_model_type")
    plain = flatten(config)
    named = plain.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    named_by = (each for each in methods_where().values() if algorithm in each.speculators)
    method = next(named_by, None) or find_by_marks(plain, architecture, names)
    mask = find_mask_token(plain)
    return RecognizedDrafter(
        method=method.name,
        traits=method,
        layout="plain" if algorithm is None else "speculators",
        algorithm=method.name if algorithm is None else str(algorithm),
        config=plain,
        architecture=architecture,
        parallel=method.parallel == "always" or (mask is not None and method.parallel == "option"),
        mask_token_id=mask,
        aux_layers=find_aux_layers(plain) if method.aux_states == "several" else None,
    )
