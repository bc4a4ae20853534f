"""Which drafter, of which method and in which format, a checkpoint holds: from its config and its tensors' names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftwise.checkpoints.dimensions import get_int, get_ints, get_mapping
from draftwise.checkpoints.roles import role_of

__all__ = ["Drafter", "recognize"]

_MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Where a config.json may keep the id of the mask token, in vLLM's order (v1/spec_decode/llm_base_proposer.py)."""

_BY_ARCHITECTURE: tuple[tuple[str, str], ...] = (
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("eagle3", "eagle3"),
    ("peagle", "eagle3"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
    ("eagle", "eagle"),
)
"""Method by what the architecture's name contains; the first that matches."""
_BY_TENSORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("dspark", re.compile(r"markov_head\.")),
    ("medusa", re.compile(r"(?:medusa_heads\.)?(?:blocks\.\d+\.layers\.\d+\.|\d+\.\d+\.linear\.)")),
    ("mlp_speculator", re.compile(r"speculator\.(?:emb|proj|head|ln)\.")),
    ("dflash", re.compile(r"hidden_norm\.weight$")),
    ("eagle3", re.compile(r"midlayer\.|layers\.0\.hidden_norm\.|d2t$|mask_hidden$")),
    ("eagle", re.compile(r"fc\.weight$")),
)
"""Method by a tensor that only its heads have, for architectures that say nothing (`LlamaForCausalLM`)."""
_BY_MODEL_TYPE = {"medusa": "medusa", "mlp_speculator": "mlp_speculator"}
_SPECULATORS = {"eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """What a checkpoint is, as drafters go."""

    method: str
    """As vLLM spells it; `draft_model` for a whole language model, which may as well be a target."""
    layout: Literal["plain", "speculators"]
    algorithm: str
    """`speculators_model_type`, else the method."""
    config: Mapping[str, Any]
    """Plain fields, whatever the layout."""
    architecture: str
    """The first, empty where none is named."""
    parallel: bool
    """Whether it makes all guesses in one pass over masked tokens."""
    mask_token_id: int | None
    taps: tuple[int, ...] | None
    """Target layers whose input it reads, in EAGLE-3's numbering: 0 for the embeddings, i for what enters layer i. None
    for drafters that read no such states, and where the config does not say."""

    @property
    def is_head(self) -> bool:
        """Whether it runs on the target's hidden states instead of being a model of its own."""
        return self.method != "draft_model"


def recognize(config: Mapping[str, Any], names: Collection[str]) -> Drafter:
    """Return what a config.json and the names of its tensors amount to."""
    algorithm = config.get("speculators_model_type")
    layout: Literal["plain", "speculators"] = "plain" if algorithm is None else "speculators"
    plain = config if layout == "plain" else _to_plain(config)
    named = plain.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    method = _SPECULATORS.get(str(algorithm)) or _find_method(plain, architecture, names)
    mask = get_int(get_mapping(plain, "dflash_config"), "mask_token_id")
    mask = get_int(plain, *_MASK_KEYS) if mask is None else mask
    return Drafter(
        method=method,
        layout=layout,
        algorithm=method if algorithm is None else str(algorithm),
        config=plain,
        architecture=architecture,
        parallel=method in ("dflash", "dspark") or (mask is not None and method in ("eagle3", "draft_model")),
        mask_token_id=mask,
        taps=_find_taps(plain, method),
    )


def _find_method(config: Mapping[str, Any], architecture: str, names: Collection[str]) -> str:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in _BY_MODEL_TYPE:
        return _BY_MODEL_TYPE[model_type]
    for part, method in _BY_ARCHITECTURE:
        if part in architecture.lower():
            return method
    if names and all(role_of(name) == "mtp" for name in names):
        return "mtp"
    for method, pattern in _BY_TENSORS:
        if any(pattern.match(name) for name in names):
            return method
    return "medusa" if "medusa_num_heads" in config else "draft_model"


def _to_plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain config that one of the speculators library stands for (vLLM's `speculators/algos.py`)."""
    algorithm = config.get("speculators_model_type")
    plain = {**get_mapping(config, "transformer_layer_config")}
    plain |= {key: value for key, value in config.items() if key in _SHARED and value is not None}
    plain.setdefault("norm_before_residual", algorithm == "eagle3")
    if algorithm in ("dflash", "dflash2", "dspark"):
        taps = get_ints(config, "aux_hidden_state_layer_ids")
        own = {"mask_token_id": config.get("mask_token_id")}
        plain["dflash_config"] = own | ({} if taps is None else {"target_layer_ids": [layer - 1 for layer in taps]})
        plain["architectures"] = ["Qwen3DSparkModel" if algorithm == "dspark" else _DFLASH[str(algorithm)]]
    elif algorithm in ("eagle3", "peagle"):
        family = "Qwen3" if plain.get("model_type") == "qwen3" else "Llama"
        plain["architectures"] = [f"{'Eagle3' if algorithm == 'eagle3' else 'Peagle'}{family}ForCausalLM"]
    return plain


_DFLASH = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
_SHARED = frozenset({
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "eagle_aux_hidden_state_layer_ids", "mask_token_id", "block_size", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov", "quantization_config", "tie_word_embeddings",
})  # fmt: skip
"""Fields of the library's own config that have the same name and meaning in a plain one."""


def _find_taps(config: Mapping[str, Any], method: str) -> tuple[int, ...] | None:
    """Return the layers that a head reads, ascending and once each, as vLLM hands their states over."""
    if method not in ("eagle3", "dflash", "dspark"):
        return None
    key = "eagle_aux_hidden_state_layer_ids"
    taps = get_ints(config, key) or get_ints(get_mapping(config, "eagle_config"), key)
    if taps is None:
        below = get_ints(get_mapping(config, "dflash_config"), "target_layer_ids") or get_ints(
            config, "target_layer_ids"
        )
        taps = None if below is None else tuple(layer + 1 for layer in below)
    return None if taps is None else tuple(sorted(set(taps)))
