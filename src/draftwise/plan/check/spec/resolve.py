"""SpeculativeConfig from the first key to the last check: what it becomes, and every reason why it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from draftwise.plan.check.cli import read_fields
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.spec.drafting import resolve_drafter
from draftwise.plan.check.spec.implied import imply_model
from draftwise.plan.check.spec.method import infer_method
from draftwise.plan.check.spec.model_free import resolve_model_free
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.spec.verify import verify
from draftwise.plan.check.steps import Step

__all__ = ["resolve"]

_NAMED = frozenset(
    {
        "method",
        "num_speculative_tokens",
        "model",
        "prompt_lookup_min",
        "prompt_lookup_max",
        "draft_tensor_parallel_size",
        "quantization",
        "parallel_drafting",
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
    }
)
"""Fields that `Resolved` has under a name of its own, or not at all."""


def resolve(context: Context, target: Model | None) -> Step[Resolved | None]:
    """Return what the speculative config becomes where that can be known, and yield every finding about it.

    Args:
        context: with a speculative config.
        target: the served model as ModelConfig holds it; None where its config.json cannot be read here.
    """
    if context.rules.applies("draft-model-refused", context.keys.get("method", "")):
        yield from context.rules.ruling(
            "draft-model-refused",
            "The method draft_model does not exist in this release's engine.",
            where="method",
            fix="Use a release from 0.15.0 on.",
        )
    fields = yield from read_fields(context)
    spec = Spec(
        fields=fields,
        target=target,
        tokens=fields.values.get("num_speculative_tokens"),
        quantization=fields.values.get("quantization"),
        open=fields.faulty,
    )
    spec = yield from infer_method(context, spec)
    spec = yield from imply_model(context, spec)
    if spec.facts is not None and not spec.facts.has_weights:
        spec = yield from resolve_model_free(context, spec)
    elif spec.known("method"):
        spec = yield from resolve_drafter(context, replace(spec, lookup=(0, 0)))
    spec = yield from verify(context, spec)
    return _to_resolved(spec)


def _to_resolved(spec: Spec) -> Resolved | None:
    if spec.method is None or not spec.known("method"):
        return None
    return Resolved(
        method=spec.method,
        num_speculative_tokens=_to_whole(spec.tokens),
        model=spec.model,
        prompt_lookup_min=spec.lookup[0],
        prompt_lookup_max=spec.lookup[1],
        draft_tensor_parallel_size=spec.draft_tp,
        draft_architectures=None if spec.draft is None else spec.draft_names,
        target_architectures=None if spec.target is None else spec.target.config.architectures,
        draft_max_model_len=spec.draft_len,
        quantization=spec.quantization,
        parallel_drafting=spec.parallel_drafting or bool(spec.get("parallel_drafting")),
        synthetic_acceptance_rates=spec.rates,
        fields={key: value for key, value in spec.fields.values.items() if key not in _NAMED} | dict(spec.filled),
    )


def _to_whole(tokens: Any) -> int | None:
    """Return the number of tokens; old releases let 3.0 pass for 3."""
    if isinstance(tokens, float):
        return int(tokens) if tokens.is_integer() else None
    return tokens if isinstance(tokens, int) else None
