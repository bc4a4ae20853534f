"""Which quantization a model is loaded with: the one asked for against the one that its checkpoint declares."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.facts.quantization import is_deprecated, needs_checkpoint, reads_weights_of
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.hf_config import HfConfig
from draftwise.plan.check.steps import Step

__all__ = ["find_unquantized", "resolve_quantization"]

_PLAIN_KERNELS = {"awq": "plain-awq-in-float16", "gptq": "plain-gptq-in-float16"}
"""Kernels for float16 only, and the rule of the releases that still have them."""

_LOADED_AS = {"auto-round": "inc"}
"""Names that checkpoints declare and the listed methods no longer hold, and the method that loads them."""

_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


def resolve_quantization(context: Context, config: HfConfig, asked: str | None, role: str) -> Step[str | None]:
    """Return the method that a model is loaded with, and yield why that is refused.

    Args:
        context: whose release loads.
        config: the model's config.
        asked: method of the flag or key; None takes the checkpoint's.
        role: `drafter` or `target`.
    """
    own = config.quantization
    method = asked.lower() if asked is not None and context.holds("quantization-any-case") else asked
    chosen = method or own
    if chosen is None:
        return None
    if method is not None and own is not None and not reads_weights_of(method, own):
        yield from context.ruling(
            f"{role}-quantization-differs",
            f"quantization asks for {asked!r}, and the {role}'s checkpoint is quantized with {own!r}.",
            where="quantization",
            fix=f"Leave it out: vLLM reads {own!r} from the checkpoint.",
        )
        return own
    known = context.release.table("spec_fields")["quantization"]["choices"]
    if chosen not in known and _LOADED_AS.get(chosen) in known:
        chosen = _LOADED_AS[chosen]
    if chosen not in known:
        yield from context.ruling(
            f"{role}-quantization-unknown",
            f"{chosen!r} is not a quantization method of vLLM {context.release}.",
            where="quantization",
            fix="Use one of " + ", ".join(sorted(known)) + ".",
        )
        return chosen
    yield from _find_deprecated(context, chosen, role)
    if role == "target":
        yield from _find_float16_kernel(context, config, method)
    return chosen


def _find_deprecated(context: Context, method: str, role: str) -> Iterator[Ruling]:
    allowed = context.flag("allow_deprecated_quantization") is True
    if is_deprecated(method, context.release.version) and not allowed:
        yield from context.ruling(
            f"{role}-quantization-deprecated",
            f"The quantization method {method!r} is deprecated and refused unless it is allowed.",
            where="quantization",
            fix="Set allow_deprecated_quantization, or use another method.",
        )


def _find_float16_kernel(context: Context, config: HfConfig, asked: str | None) -> Iterator[Ruling]:
    """Yield the refusal of a kernel for float16 that was asked for by name; unasked, a better one is taken."""
    dtype = context.flag("dtype")
    if dtype in (None, "auto"):
        dtype = config.text.get("dtype") or config.text.get("torch_dtype")
    if asked in _PLAIN_KERNELS and dtype == "bfloat16":
        yield from context.ruling(
            _PLAIN_KERNELS[asked],
            f"The quantization method {asked!r} runs in float16 only, and the model in bfloat16.",
            where="quantization",
            fix=f"Leave it out: vLLM then takes {asked}_marlin, or set dtype to float16.",
        )


def find_unquantized(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield the refusal of a method that needs a quantized checkpoint, for a target that is not."""
    method = context.given.get("quantization")
    if not isinstance(method, str) or config.quantization is not None or not needs_checkpoint(method.lower()):
        return
    directory = None if context.target is None else context.target.directory
    if directory is None or not any((directory / name).is_file() for name in _QUANTIZATION_FILES):
        yield from context.ruling(
            "target-not-quantized",
            f"The quantization method {method!r} loads quantized checkpoints only, and the target's is not.",
            where="quantization",
            fix="Leave it out, or use a method that quantizes while it loads, such as fp8.",
        )
