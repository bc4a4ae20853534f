"""What vLLM's ModelConfig makes of a target or drafter: class, context length and quantization, or why it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.architecture import find_architecture
from draftwise.plan.check.context import Context
from draftwise.plan.check.hf_config import HfConfig
from draftwise.plan.check.quantization import judge_quantization

__all__ = ["Model", "find_class", "judge_model"]

_DEFAULT_LENGTH = 2048
_LONGEST = 1 << 40
"""No context comes near it; larger numbers are damaged files."""
_UNSCALED = frozenset({"su", "longrope", "llama3"})
_YARN = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
_NEEDS_WIDE_RANGE = frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"})
_ROPE_KEYS = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as its ModelConfig holds it."""

    config: HfConfig
    max_model_len: int
    quantization: str | None


def judge_model(
    context: Context,
    config: HfConfig,
    *,
    role: str,
    max_model_len: int | None = None,
    quantization: str | None = None,
    target_length: int | None = None,
) -> tuple[Model, tuple[Ruling, ...]]:
    """Return the model and what is wrong with it.

    Args:
        context: whose release judges.
        config: after transformers, and for a drafter after the MTP rewriting.
        role: `drafter` or `target`.
        max_model_len: context length asked for.
        quantization: method asked for.
        target_length: the target's context length, which a drafter without its own takes over.
    """
    rulings = [*find_class(context, config, role=role), *_judge_dtype(context, config, role)]
    derived = _derive_length(context, config)
    length = max_model_len if max_model_len not in (None, -1) else derived
    if length is None:
        length = target_length or _DEFAULT_LENGTH
    elif derived is not None and length > derived:
        rulings.extend(_judge_length(context, config, length, derived, role))
    method, quantization_rulings = judge_quantization(context, config, quantization, role)
    return Model(config=config, max_model_len=length, quantization=method), (*rulings, *quantization_rulings)


def find_class(context: Context, config: HfConfig, *, role: str) -> Iterator[Ruling]:
    """Yield the refusal of a model whose class the release does not have."""
    if find_architecture(context, config.architectures, served=role == "target") is None:
        names = ", ".join(config.architectures) or "none"
        yield get_rule(f"{role}-class-unknown").ruling(
            f"has the architecture {names}, which vLLM {context.release} cannot build.",
            where="model" if role == "drafter" else role,
            fix="Use a release that registers it (`draftwise explain` tells which), or another checkpoint.",
        )


def _judge_dtype(context: Context, config: HfConfig, role: str) -> Iterator[Ruling]:
    if context.flag("dtype") in ("half", "float16") and config.model_type in _NEEDS_WIDE_RANGE:
        yield get_rule(f"{role}-needs-bfloat16").ruling(
            f"is float16, in which models of type {config.model_type!r} overflow.", where="dtype",
            fix="Use bfloat16.",
        )  # fmt: skip


def _derive_length(context: Context, config: HfConfig) -> int | None:
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


def _judge_length(context: Context, config: HfConfig, asked: int, derived: int, role: str) -> Iterator[Ruling]:
    declared = config.text.get("model_max_length")
    if isinstance(declared, int) and asked <= declared:
        return
    if context.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true"):
        return
    yield get_rule(f"{role}-too-long").ruling(
        f"asks for a context of {asked} tokens, and the model was made for {derived}.",
        where="max_model_len",
        fix=f"Give at most {derived}.",
    )
