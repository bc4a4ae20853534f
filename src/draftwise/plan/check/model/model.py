"""What vLLM's ModelConfig makes of a target or drafter: class, context length and quantization, or why it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.architecture import find_architecture
from draftwise.plan.check.model.context_length import derive_length, find_too_long
from draftwise.plan.check.model.hf_config import HfConfig, place_of
from draftwise.plan.check.model.quantization import resolve_quantization
from draftwise.plan.check.steps import Step

__all__ = ["Model", "build_model"]

_DEFAULT_LENGTH = 2048
_NEEDS_WIDE_RANGE = frozenset({"gemma2", "gemma3", "gemma3_text", "plamo2", "glm4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as its ModelConfig holds it."""

    config: HfConfig
    max_model_len: int
    quantization: str | None


def build_model(
    context: Context,
    config: HfConfig,
    *,
    role: str,
    max_model_len: int | None = None,
    quantization: str | None = None,
    target_length: int | None = None,
) -> Step[Model]:
    """Return the model, and yield what is wrong with it.

    Args:
        context: whose release judges.
        config: after transformers, and for a drafter after the MTP rewriting.
        role: `drafter` or `target`.
        max_model_len: context length asked for.
        quantization: method asked for.
        target_length: the target's context length, which a drafter without its own takes over.
    """
    yield from _find_class(context, config, role)
    yield from _find_dtype(context, config, role)
    derived = derive_length(context, config)
    length = max_model_len if max_model_len not in (None, -1) else derived
    if length is None:
        length = target_length or _DEFAULT_LENGTH
    elif derived is not None and length > derived:
        yield from find_too_long(context, config, length, derived, role)
    method = yield from resolve_quantization(context, config, quantization, role)
    return Model(config=config, max_model_len=length, quantization=method)


def _find_class(context: Context, config: HfConfig, role: str) -> Iterator[Ruling]:
    if find_architecture(context, config.architectures, served=role == "target") is None:
        names = ", ".join(config.architectures) or "none"
        yield from context.ruling(
            f"{role}-class-unknown",
            f"The {role} has the architecture {names}, which vLLM {context.release} cannot build.",
            where=place_of(role),
            fix="Use a release that registers it (`draftwise explain` tells which), or another checkpoint.",
        )


def _find_dtype(context: Context, config: HfConfig, role: str) -> Iterator[Ruling]:
    if context.flag("dtype") in ("half", "float16") and config.model_type in _NEEDS_WIDE_RANGE:
        yield from context.ruling(
            f"{role}-needs-bfloat16",
            f"The dtype is float16, in which models of type {config.model_type!r} overflow.",
            where="dtype",
            fix="Use bfloat16.",
        )
