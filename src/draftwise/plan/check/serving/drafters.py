"""What a drafter needs when it is built and loaded, which the accepted config does not promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.serving.hidden_states import find_hidden_states
from draftwise.plan.check.serving.methods import find_method_faults

__all__ = ["find_drafters"]


def find_drafters(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what fails, or drafts less than it could, once the drafter is built."""
    yield from _find_tensor_parallel(context, resolved)
    yield from _find_aux_states(context, resolved)
    yield from _find_standalone(context, resolved)
    yield from _find_mask_token(context, resolved)
    yield from find_method_faults(context, resolved)
    yield from find_hidden_states(context, resolved)


def _find_tensor_parallel(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    target = context.size("tensor_parallel_size") or 1
    given, key = resolved.draft_tensor_parallel_size, "draft_tensor_parallel_size"
    if given is None or given == target or key not in context.keys:
        return
    if resolved.facts.drafts_from in ("text", "own_code"):
        return
    fix = f"Leave it out, or write {target}."
    if resolved.facts.drafts_from == "own_model" and resolved.runner != "V2":
        if resolved.runner is not None:
            message = f"The config accepts {key} {given}, but a draft model needs the target's {target}: start-up ends."
            yield from context.rules.ruling("draft-tensor-parallel-differs", message, where=key, fix=fix)
    else:
        message = f"{key} {given} is accepted and not read: the drafter is split over the target's {target} GPUs."
        yield from context.rules.ruling("draft-tensor-parallel-ignored", message, where=key, fix=fix)


def _find_aux_states(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge methods that read hidden states out of the target's middle layers."""
    if has_interface(context, "SupportsEagle3") is False and not _declines_aux_states(context, resolved):
        name = ", ".join(context.target.architectures) if context.target else ""
        yield from context.rules.ruling(
            "target-without-aux-states",
            f"{name} of vLLM {context.release} cannot give out its middle layers' hidden states, which "
            f"{resolved.method} needs.",
            where="--model",
            fix="Use ngram, suffix, eagle or a draft model, or a release whose class for this target has "
            "SupportsEagle3.",
            method=resolved.method,
        )


def _declines_aux_states(context: Context, resolved: Resolved) -> bool:
    """Say whether a head declares that it takes the last layer's output only."""
    inner = context.draft_config.get("eagle_config")
    declined = isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False
    return declined and context.rules.applies("eagle3-may-decline-aux-states", resolved.method)


def _find_standalone(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge draft models and parallel heads, whose V1 proposer lays out its own batch."""
    own_model = resolved.facts.drafts_from == "own_model"
    parallel_head = resolved.parallel_drafting and context.rules.applies("parallel-heads", resolved.method)
    if resolved.runner != "V1" or not (own_model or parallel_head):
        return
    if context.keys.get("disable_padded_drafter_batch"):
        yield from context.rules.ruling(
            "padded-batch-required",
            "A draft model or a parallel head drafts on padded batches only.",
            where="disable_padded_drafter_batch",
            fix="Leave it out.",
        )
    if _has_mrope(context.draft_config):
        yield from context.rules.ruling(
            "draft-with-mrope",
            "The drafter uses M-RoPE positions, which a draft model or a parallel head cannot have.",
            where="model",
            fix="Use a text-only draft model of the same vocabulary.",
        )
    if has_interface(context, "SupportsMultiModal") and not _is_text_only(context):
        yield from _find_multimodal(context)


def _find_multimodal(context: Context) -> Iterator[Ruling]:
    name = context.target.architectures[0] if context.target else ""
    yield from context.rules.ruling(
        "draft-model-with-multimodal-target",
        f"{name} takes images or sound, which a draft model or a parallel head cannot follow.",
        where="--model",
        fix="Serve text only, or use ngram or eagle3.",
    )
    yield from context.rules.ruling(
        "draft-model-reads-text-only",
        f"{name} takes images or sound; the drafter sees the text alone, so fewer of its tokens are accepted after "
        "them.",
        where="--model",
    )


def _is_text_only(context: Context) -> bool:
    return bool(context.given.get("language_model_only") or context.given.get("limit_mm_per_prompt"))


def _has_mrope(config: Mapping[str, Any]) -> bool:
    for part in config, (config.get("text_config") or {}):
        for key in ("rope_scaling", "rope_parameters"):
            rope = part.get(key)
            if isinstance(rope, Mapping) and "mrope_section" in rope:
                return True
    return False


def _find_mask_token(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    config = context.draft_config
    if not resolved.parallel_drafting or context.drafter is None or "speculators_model_type" in config:
        return
    keys = ["pard_token", "ptd_token_id"]
    inner = config.get("dflash_config")
    found = isinstance(inner, Mapping) and "mask_token_id" in inner and context.rules.holds("mask-token-of-dflash")
    if context.rules.holds("mask-token-at-top-level"):
        keys += ["mask_token_id", "dspark_noise_token_id"]
    if found or any(config.get(key) is not None for key in keys):
        return
    fix = "Use a drafter trained for parallel drafting, or set parallel_drafting to false."
    yield from context.rules.ruling(
        "parallel-drafting-needs-mask-token",
        f"The drafter's config.json names no mask token ({', '.join(keys)}), and parallel drafting needs one.",
        where="model",
        fix="Write dflash_config.mask_token_id as trained." if resolved.facts.parallel == "always" else fix,
        method=resolved.method,
    )
