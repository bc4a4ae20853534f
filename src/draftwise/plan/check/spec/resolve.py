"""SpeculativeConfig from the first key to the last check: what it becomes, and every reason why it does not."""

from __future__ import annotations

from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.drafting import resolve_drafter
from draftwise.plan.check.lookup import MODEL_FREE, resolve_model_free
from draftwise.plan.check.method import infer_method
from draftwise.plan.check.model import Model
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.schema import read_fields
from draftwise.plan.check.target import fill_in_target
from draftwise.plan.check.verify import verify
from draftwise.plan.check.work import Work

__all__ = ["resolve"]

_NAMED = frozenset(
    {"method", "num_speculative_tokens", "model", "prompt_lookup_min", "prompt_lookup_max",
     "draft_tensor_parallel_size", "quantization", "parallel_drafting", "synthetic_acceptance_rates",
     "synthetic_acceptance_length", "target_model_config", "target_parallel_config", "draft_model_config",
     "draft_parallel_config"}
)  # fmt: skip


def resolve(context: Context, target: Model | None) -> tuple[tuple[Ruling, ...], Resolved | None]:
    """Return every finding about the speculative config, and what it becomes where that can be known.

    Args:
        context: with a speculative config.
        target: the served model as ModelConfig holds it; None where its config.json cannot be read here.
    """
    fields = read_fields(context)
    work = Work(context=context, fields=fields, target=target)
    if (context.spec or {}).get("method") == "draft_model":
        work.add("draft-model-refused", "does not exist in this release's engine.", where="method",
                 fix="Use a release from 0.15.0 on.")  # fmt: skip
    work.rulings.extend(fields.rulings)
    work.tokens, work.quantization = work.get("num_speculative_tokens"), work.get("quantization")
    infer_method(work)
    fill_in_target(work)
    if work.method in MODEL_FREE:
        resolve_model_free(work)
    elif work.known("method"):
        work.lookup = (0, 0)
        resolve_drafter(work)
    verify(work)
    return tuple(work.rulings), _to_resolved(work)


def _to_resolved(work: Work) -> Resolved | None:
    if work.method is None or not work.known("method"):
        return None
    draft = work.draft
    names = draft.config.architectures if draft is not None else None
    return Resolved(
        method=work.method,
        num_speculative_tokens=_to_whole(work.tokens),
        model=work.model,
        prompt_lookup_min=work.lookup[0],
        prompt_lookup_max=work.lookup[1],
        draft_tensor_parallel_size=work.draft_tp,
        draft_architectures=names,
        target_architectures=None if work.target is None else work.target.config.architectures,
        draft_max_model_len=work.draft_len,
        quantization=work.quantization,
        parallel_drafting=work.parallel_drafting or bool(work.get("parallel_drafting")),
        synthetic_acceptance_rates=work.rates,
        fields={key: value for key, value in work.values.items() if key not in _NAMED} | work.filled,
    )


def _to_whole(tokens: Any) -> int | None:
    """Return the number of tokens; old releases let 3.0 pass for 3."""
    if isinstance(tokens, float):
        return int(tokens) if tokens.is_integer() else None
    return tokens if isinstance(tokens, int) else None
