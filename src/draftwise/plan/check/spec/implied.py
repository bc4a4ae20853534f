"""The drafter of a config without `model`: the target's own layers, a placeholder, or none, which is refused."""

from __future__ import annotations

from dataclasses import replace

from draftwise.plan.check.context import Context
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["imply_model"]

_IMPLIED = {
    "deepseek_v3": "target-implies-mtp",
    "mimo": "target-implies-mtp",
    "ernie4_5_moe": "more-targets-imply-mtp",
    "qwen3_next": "more-targets-imply-mtp",
}
"""Targets whose MTP layers old releases use whatever method is asked for, and the rule of those releases."""
_IMPLIED_METHOD = "deepseek_mtp"


def imply_model(context: Context, spec: Spec) -> Step[Spec]:
    """Give a config without `model` the drafter that its method implies."""
    if spec.model is not None or not spec.known("method", "model", "num_speculative_tokens") or spec.tokens is None:
        return spec
    facts = spec.facts
    target_type = "" if spec.target is None else spec.target.config.text.model_type
    if target_type in _IMPLIED and context.rules.holds(_IMPLIED[target_type]):
        if spec.method != _IMPLIED_METHOD:
            yield from context.rules.ruling(
                _IMPLIED[target_type],
                f"The target is of type {target_type!r}; without `model`, this release drafts with its MTP layers "
                "whatever the method.",
                where="target",
                becomes=_IMPLIED_METHOD,
            )
        return (yield from _draft_with_target(context, spec))
    # Releases that still go by the old names of mtp draft with the target only where its type implies it.
    if facts is not None and facts.weights in ("target", "either") and spec.method not in facts.aliases:
        return (yield from _draft_with_target(context, spec))
    if facts is not None and facts.drafts_from == "own_code":
        yield from context.rules.ruling(
            "custom-class-needs-path",
            f"The method {spec.method} needs `model` with the path of the class.",
            where="model",
            fix='Add "model": "package.module.Class".',
        )
        return spec.undecided("model")
    if facts is not None and not facts.has_weights:
        return replace(spec, model=spec.method)
    if target_type or not context.rules.holds("target-implies-mtp"):
        named = spec.method is not None
        yield from context.rules.ruling(
            "model-missing",
            f"The method {spec.method} needs `model`, the drafter." if named else "`method` or `model` must be given.",
            where="model",
            fix='Add "model": "<directory or id of the drafter>".',
        )
        return spec.undecided("model", "draft")
    return spec


def _draft_with_target(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the target as its own drafter."""
    spec = replace(spec, model=context.verifier or context.setup.target)
    if not spec.quantization and spec.target is not None and context.rules.holds("mtp-inherits-quantization"):
        spec = replace(spec, quantization=spec.target.quantization)
    is_v32 = spec.target is not None and spec.target.config.text.model_type == "deepseek_v32"
    if is_v32 and context.rules.holds("mtp-v32-eager"):
        yield from context.rules.ruling(
            "mtp-v32-eager",
            f"The method {spec.method} runs its drafter without CUDA graphs on this target.",
            where="method",
            becomes='"enforce_eager": true',
            fix="Use 0.29.0 or newer.",
        )
        spec = replace(spec, filled={**spec.filled, "enforce_eager": True})
    return spec
