"""Drafter configs of the `speculators` library, to and from the plain ones of vLLM's own checkpoints.

Source: speculators 0.9.0 (https://github.com/vllm-project/speculators, `models/*/config.py`) and vLLM 0.32's
`transformers_utils/configs/speculators`. Tensors have the same names in both formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.engine.models.mask import MASK_KEYS, find_mask_token

__all__ = ["from_plain", "to_plain"]

_Config = Mapping[str, Any]


def to_plain(config: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Return a drafter's config.json as the plain one that it stands for; a plain one comes back as it is.

    The fields of `transformer_layer_config` become the config, and the algorithm's own join them under their plain
    names. What a file leaves out can mean something else in the two formats: here `norm_before_residual` is true for
    eagle3 (but false for peagle and in plain files). And dflash counts the layers it taps as EAGLE-3 does, one higher
    than the plain `target_layer_ids`.

    Args:
        config: config.json as read; not changed.
        where: its path, for messages.

    Raises:
        InvalidSetup: the file describes no eagle3, peagle or dflash speculator, or lacks a field.
    """
    if "speculators_model_type" not in config:
        return config
    name = config["speculators_model_type"]
    if name not in _KINDS:
        raise InvalidSetup.because(
            "unsupported-speculator",
            f"speculators_model_type {name!r} is not supported.",
            where=where,
            fix=f"Use a checkpoint of one of {', '.join(_KINDS)}.",
        )
    missing = [key for key in ("transformer_layer_config", *_KINDS[name].needed) if config.get(key) is None]
    if missing:
        raise InvalidSetup.because(
            "config-incomplete",
            f"lacks {', '.join(missing)}.",
            where=where,
            fix="Download the checkpoint again, or save it anew with the speculators library.",
        )
    shared = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    return {**config["transformer_layer_config"], **shared, **_KINDS[name].to_plain(config)}


def from_plain(config: _Config, *, verifier: str, k: int, where: str = "config.json") -> dict[str, Any]:
    """Return the config.json in speculators format of a drafter that has a plain one.

    Args:
        config: plain config of an EAGLE-3, a P-EAGLE (the same with a mask token) or a DFlash drafter.
        verifier: name or path of the target; `vllm serve DRAFTER` takes it from here, literally as written.
        k: guesses a step that such a server makes.
        where: path of `config`, for messages.

    Raises:
        InvalidSetup: the format has no place for this kind of drafter, or for one of its settings.
    """
    name = _find_kind(config, where)
    kind = _KINDS[name]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How one algorithm's own fields translate."""

    architecture: str
    """The library's name of it."""
    needed: tuple[str, ...]
    """Fields without which its file says too little."""
    to_plain: Callable[[_Config], dict[str, Any]]
    from_plain: Callable[[_Config, str], dict[str, Any]]


_SHARED_KEYS = ("draft_vocab_size", "target_hidden_size", "block_size")
_EAGLE_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_AUX_KEY = "eagle_aux_hidden_state_layer_ids"
_OWN_KEYS = {
    *("architectures", "dflash_config", "eagle_config", "target_layer_ids", _AUX_KEY),
    *(*_SHARED_KEYS, *_EAGLE_FLAGS, *MASK_KEYS),
}
"""Fields of a plain config that are the drafter's and not its decoder layers'."""


def _eagle3_to_plain(config: _Config) -> dict[str, Any]:
    plain = {key: bool(config.get(key, False)) for key in _EAGLE_FLAGS}
    plain["norm_before_residual"] = bool(config.get("norm_before_residual", True))
    return {"architectures": _eagle_architecture(config, "Eagle3"), **plain, **_aux_ids(config)}


def _peagle_to_plain(config: _Config) -> dict[str, Any]:
    plain: dict[str, Any] = {key: bool(config.get(key, False)) for key in _EAGLE_FLAGS}
    plain["pard_token"] = config["mask_token_id"]
    return {"architectures": _eagle_architecture(config, "Peagle"), **plain, **_aux_ids(config)}


def _eagle_architecture(config: _Config, prefix: str) -> list[str]:
    model_type = str(config["transformer_layer_config"].get("model_type", "llama"))
    return [f"{prefix}{model_type.capitalize()}ForCausalLM"]


def _aux_ids(config: _Config) -> dict[str, Any]:
    return {_AUX_KEY: list(config[_AUX_KEY])} if config.get(_AUX_KEY) else {}


def _dflash_to_plain(config: _Config) -> dict[str, Any]:
    aux_ids = list(config["aux_hidden_state_layer_ids"])
    own: dict[str, Any] = {"mask_token_id": config["mask_token_id"], "target_layer_ids": [i - 1 for i in aux_ids]}
    if config.get("sample_from_anchor"):
        own["sample_from_anchor"] = True
    # The flag speaks of sliding layers only: the library trains full ones without causality whatever it says. vLLM
    # 0.32 takes it for all layers (vllm-project/vllm#56692). Unsaid, a plain config means causal sliding layers.
    if config.get("sliding_window_non_causal", True):
        own["causal"] = False
    return {"architectures": ["DFlashDraftModel"], _AUX_KEY: aux_ids, "dflash_config": own}


def _eagle3_from_plain(config: _Config, _where: str) -> dict[str, Any]:
    nested = config.get("eagle_config") or {}
    aux_ids = config.get(_AUX_KEY) or nested.get(_AUX_KEY) or nested.get("layer_ids")
    own: dict[str, Any] = {key: bool(config.get(key, False)) for key in _EAGLE_FLAGS}
    return {**own, _AUX_KEY: list(aux_ids)} if aux_ids else own


def _peagle_from_plain(config: _Config, where: str) -> dict[str, Any]:
    return {**_eagle3_from_plain(config, where), "mask_token_id": find_mask_token(config)}


def _dflash_from_plain(config: _Config, where: str) -> dict[str, Any]:
    own = config.get("dflash_config") or {}
    zero_based = own.get("target_layer_ids") or config.get("target_layer_ids") or []
    aux_ids = list(config.get(_AUX_KEY) or [i + 1 for i in zero_based])
    mask_token_id = own.get("mask_token_id", find_mask_token(config))
    known = ("mask_token_id", "target_layer_ids", "causal", "sample_from_anchor")
    lost = [f"dflash_config.{key}" for key, value in own.items() if value and key not in known]
    layer_types = config.get("layer_types") or ["full_attention"]
    if own.get("causal") and "full_attention" in layer_types:
        lost.append("dflash_config.causal over full attention")
    if lost or not aux_ids or mask_token_id is None:
        wrong = f"cannot express {', '.join(lost)}" if lost else "needs target_layer_ids and mask_token_id"
        raise InvalidSetup.because(
            "not-in-speculators-format",
            f"the speculators format {wrong}.",
            where=where,
            fix="Export the plain format; vLLM loads it with `model` in its speculative config.",
        )
    sliding_causal = "sliding_attention" in layer_types and own.get("causal") is not False
    return {
        "aux_hidden_state_layer_ids": aux_ids,
        "mask_token_id": mask_token_id,
        "sample_from_anchor": bool(own.get("sample_from_anchor", False)),
        "sliding_window_non_causal": not sliding_causal,
    }


def _find_kind(config: _Config, where: str) -> str:
    names = " ".join(config.get("architectures") or []).lower()
    if "dflash" in names:
        return "dflash"
    if "eagle3" in names or "peagle" in names:
        return "eagle3" if find_mask_token(config) is None else "peagle"
    raise InvalidSetup.because(
        "not-in-speculators-format",
        f"architecture {', '.join(config.get('architectures') or []) or 'unknown'} has no speculators format.",
        where=where,
        fix="It holds EAGLE-3, P-EAGLE and DFlash drafters; export others in the plain format.",
    )


_KINDS = {
    "eagle3": _Kind(
        architecture="Eagle3Speculator", needed=(), to_plain=_eagle3_to_plain, from_plain=_eagle3_from_plain
    ),
    "peagle": _Kind(
        architecture="PEagleSpeculator",
        needed=("mask_token_id",),
        to_plain=_peagle_to_plain,
        from_plain=_peagle_from_plain,
    ),
    "dflash": _Kind(
        architecture="DFlashSpeculator",
        needed=("mask_token_id", "aux_hidden_state_layer_ids"),
        to_plain=_dflash_to_plain,
        from_plain=_dflash_from_plain,
    ),
}
