"""Which quantization a model is loaded with: the one asked for against the one that its checkpoint declares."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.facts.quantization import is_deprecated, reads_weights_of
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import Context
from draftwise.plan.check.hf_config import HfConfig

__all__ = ["judge_quantization"]

_PLAIN_KERNELS = {"awq": "plain-awq-in-float16", "gptq": "plain-gptq-in-float16"}
"""Kernels for float16 only, and the rule of the releases that still have them."""


_LOADED_AS = {"auto-round": "inc"}
"""Names that checkpoints declare and the listed methods no longer hold, and the method that loads them."""


def judge_quantization(
    context: Context, config: HfConfig, asked: str | None, role: str
) -> tuple[str | None, tuple[Ruling, ...]]:
    """Return the method that a model is loaded with, and why that is refused.

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
        return None, ()
    if method is not None and own is not None and not reads_weights_of(method, own):
        fault = get_rule(f"{role}-quantization-differs").ruling(
            f"asks for {asked!r}, and the checkpoint is quantized with {own!r}.", where="quantization",
            fix=f"Leave it out: vLLM reads {own!r} from the checkpoint.",
        )  # fmt: skip
        return own, (fault,)
    known = context.release.table("spec_fields")["quantization"]["choices"]
    if chosen not in known and _LOADED_AS.get(chosen) in known:
        chosen = _LOADED_AS[chosen]
    if chosen not in known:
        fault = get_rule(f"{role}-quantization-unknown").ruling(
            f"{chosen!r} is no quantization method of vLLM {context.release}.", where="quantization",
            fix="Use one of " + ", ".join(sorted(known)) + ".",
        )  # fmt: skip
        return chosen, (fault,)
    kernel = _judge_kernel(context, config, method) if role == "target" else ()
    return chosen, (*_judge_age(context, chosen, role), *kernel)


def _judge_age(context: Context, method: str, role: str) -> Iterator[Ruling]:
    allowed = context.flag("allow_deprecated_quantization") is True
    if is_deprecated(method, context.release.version) and not allowed:
        yield get_rule(f"{role}-quantization-deprecated").ruling(
            f"{method!r} is deprecated and refused unless it is allowed.", where="quantization",
            fix="Set allow_deprecated_quantization, or use another method.",
        )  # fmt: skip


def _judge_kernel(context: Context, config: HfConfig, asked: str | None) -> Iterator[Ruling]:
    """Yield the refusal of a kernel for float16 that was asked for by name; unasked, a better one is taken."""
    rule = context.rule(_PLAIN_KERNELS[asked]) if asked in _PLAIN_KERNELS else None
    dtype = context.flag("dtype")
    if dtype in (None, "auto"):
        dtype = config.text.get("dtype") or config.text.get("torch_dtype")
    if rule is not None and dtype == "bfloat16":
        yield rule.ruling(
            f"{asked!r} runs in float16 only, and the model in bfloat16.", where="quantization",
            fix=f"Leave it out: vLLM then takes {asked}_marlin, or set dtype to float16.",
        )  # fmt: skip
