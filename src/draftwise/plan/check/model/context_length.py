"""The context that a model was made for, with its scaled positions, and flags that ask for more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.hf_config import HfConfig

__all__ = ["derive_length", "find_too_long"]

_LONGEST = 1 << 40
"""No context comes near it; larger numbers are damaged files."""
_UNSCALED = frozenset({"su", "longrope", "llama3"})
_YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_ROPE_KEYS = ("rope_parameters", "rope_scaling")


def derive_length(context: Context, config: HfConfig) -> int | None:
    """Return the longest context in tokens that the config.json allows; None where it says none."""
    text = config.text
    length = config.context_length
    if length is None or abs(length) > _LONGEST:
        return None
    factor = 1.0
    for scaling in _rope_parts(text):
        kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
        if kind in _UNSCALED or "gemma3" in text.model_type:
            continue
        if kind in _YARN and context.holds("yarn-length-is-scaled"):
            continue
        if kind == "yarn" and isinstance(original := scaling.get("original_max_position_embeddings"), int):
            length = max(-_LONGEST, min(original, _LONGEST))
        if isinstance(given := scaling.get("factor"), int | float) and 0 < given < _LONGEST:
            factor = given
    return int(length * factor)


def _rope_parts(config: HfConfig) -> Iterator[Mapping[str, Any]]:
    for key in _ROPE_KEYS:
        given = config.get(key)
        if isinstance(given, Mapping):
            nested = [part for part in given.values() if isinstance(part, Mapping)]
            yield from nested or [given]
            return


def find_too_long(context: Context, config: HfConfig, asked: int, derived: int, role: str) -> Iterator[Ruling]:
    """Yield the refusal of a context beyond the one that the model was made for."""
    declared = config.text.get("model_max_length")
    if isinstance(declared, int) and asked <= declared:
        return
    if context.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true"):
        return
    yield from context.ruling(
        f"{role}-too-long",
        f"max_model_len asks for a context of {asked} tokens, and the {role} was made for {derived}.",
        where="max_model_len",
        fix=f"Give at most {derived}.",
    )
