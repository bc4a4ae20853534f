"""What a drafter needs when it is built and loaded, which the accepted config does not promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import MODEL_FREE, Draft, get_size, has_interface, holds, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_drafters"]

_DEFAULT_MEDUSA_HEADS = 5
"""Of vLLM's MedusaConfig, for a config.json that does not say."""


def find_drafters(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what fails, or drafts less than it could, once the drafter is built."""
    draft = Draft.resolved(context, resolved)
    yield from _find_tensor_parallel(context, resolved, draft)
    yield from _find_aux_states(context, draft)
    yield from _find_standalone(context, resolved, draft)
    yield from _find_mask_token(context, draft)
    match draft.method:
        case "medusa":
            yield from _find_medusa(context, resolved, draft)
        case "extract_hidden_states":
            yield from _find_hidden_states(context, resolved, draft)
        case "dflash":
            yield from _find_block(context, resolved, draft)
        case "suffix":
            yield from _find_suffix(context, resolved, draft)
        case "mlp_speculator":
            text = "the V1 engine has no code for it; start-up ends with 'Unknown speculative decoding method'."
            fix = "Train or find an EAGLE-3 head for this target, or use ngram."
            yield from rule_if(context, "mlp-speculator-not-on-v1", True, text, where="method", fix=fix)
        case "custom_class":
            dotted = "." in (resolved.model or "")
            text = f"{resolved.model!r} is no dotted path of a Python class."
            fix = "Write it as package.module.Class, importable on the server."
            yield from rule_if(context, "custom-class-path", not dotted, text, where="model", fix=fix)


def _find_tensor_parallel(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    target = get_size(context, "tensor_parallel_size") or 1
    given = resolved.draft_tensor_parallel_size
    where = "draft_tensor_parallel_size"
    if given is None or given == target or where not in draft.spec or draft.method in MODEL_FREE:
        return
    fix = f"Leave it out, or write {target}."
    if draft.method == "draft_model" and resolved.runner != "V2":
        text = f"the config accepts {given}, but a draft model needs the target's {target}: start-up ends there."
        yield from rule_if(context, "draft-tensor-parallel-differs", resolved.runner, text, where=where, fix=fix)
    else:
        text = f"{given} is accepted and not read: the drafter is split over the target's {target} GPUs."
        yield from rule_if(context, "draft-tensor-parallel-ignored", True, text, where=where, fix=fix)


def _find_aux_states(context: Context, draft: Draft) -> Iterator[Ruling]:
    """Judge methods that read hidden states out of the target's middle layers."""
    if draft.method not in ("eagle3", "dflash", "extract_hidden_states") or not _uses_aux_states(context, draft):
        return
    name = ", ".join(context.target.architectures) if context.target else ""
    yield from rule_if(
        context,
        "target-without-aux-states",
        has_interface(context, "SupportsEagle3") is False,
        f"{name} of {context.release} cannot give out its middle layers' hidden states, which {draft.method} needs.",
        where="--model",
        fix="Use ngram, suffix, eagle or a draft model, or a release whose class for this target has SupportsEagle3.",
    )


def _uses_aux_states(context: Context, draft: Draft) -> bool:
    """Say whether the drafter reads them: a head may declare that it takes the last layer's output only."""
    inner = (draft.config or {}).get("eagle_config")
    declined = isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False
    return not (draft.method == "eagle3" and declined and holds(context, "eagle3-may-decline-aux-states"))


def _find_standalone(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    """Judge draft models and parallel heads, whose V1 proposer lays out its own batch."""
    own_model = draft.method == "draft_model"
    parallel_head = draft.parallel and draft.method in ("eagle", "eagle3") and holds(context, "parallel-heads")
    if resolved.runner != "V1" or not (own_model or parallel_head):
        return
    yield from rule_if(
        context, "padded-batch-required", draft.spec.get("disable_padded_drafter_batch"),
        "a draft model or a parallel head drafts on padded batches only.",
        where="disable_padded_drafter_batch", fix="Leave it out.",
    )  # fmt: skip
    yield from rule_if(
        context, "draft-with-mrope", _has_mrope(draft.config),
        "the drafter uses M-RoPE positions, which a draft model or a parallel head cannot have.",
        where="model", fix="Use a text-only draft model of the same vocabulary.",
    )  # fmt: skip
    if has_interface(context, "SupportsMultiModal") and not _is_text_only(context):
        name = context.target.architectures[0] if context.target else ""
        yield from rule_if(
            context, "draft-model-with-multimodal-target", True,
            f"{name} takes images or sound, which a draft model or a parallel head cannot follow.",
            where="--model", fix="Serve text only, or use ngram or eagle3.",
        )  # fmt: skip
        yield from rule_if(
            context, "draft-model-reads-text-only", True,
            f"{name} takes images or sound; the drafter sees the text alone, so fewer guesses hold after them.",
            where="--model",
        )  # fmt: skip


def _is_text_only(context: Context) -> bool:
    return bool(context.given.get("language_model_only") or context.given.get("limit_mm_per_prompt"))


def _has_mrope(config: Mapping[str, Any] | None) -> bool:
    for part in (config or {}), ((config or {}).get("text_config") or {}):
        for key in ("rope_scaling", "rope_parameters"):
            rope = part.get(key)
            if isinstance(rope, Mapping) and "mrope_section" in rope:
                return True
    return False


def _find_mask_token(context: Context, draft: Draft) -> Iterator[Ruling]:
    config = draft.config
    if not draft.parallel or config is None or draft.method not in ("draft_model", "eagle", "eagle3", "dflash"):
        return
    if "speculators_model_type" in config:
        return
    keys = ["pard_token", "ptd_token_id"]
    inner = config.get("dflash_config")
    found = isinstance(inner, Mapping) and "mask_token_id" in inner and holds(context, "mask-token-of-dflash")
    if holds(context, "mask-token-at-top-level"):
        keys += ["mask_token_id", "dspark_noise_token_id"]
    yield from rule_if(
        context,
        "parallel-drafting-needs-mask-token",
        not found and all(config.get(key) is None for key in keys),
        f"the drafter's config.json names no mask token ({', '.join(keys)}), and parallel drafting needs one.",
        where="model",
        fix="Use a drafter trained for parallel drafting, or set parallel_drafting to false."
        if draft.method != "dflash"
        else "Write dflash_config.mask_token_id as trained.",
    )


def _find_medusa(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    if draft.config is None:
        return
    k, heads = resolved.num_speculative_tokens, _count_heads(draft.config)
    yield from rule_if(
        context, "medusa-too-few-heads", k is not None and k > heads,
        f"num_speculative_tokens {k} asks for more heads than the {heads} in the checkpoint; loading ends with "
        "'weights were not initialized'.",
        where="num_speculative_tokens", fix=f"Write at most {heads}.",
    )  # fmt: skip
    cut, whole = draft.config.get("truncated_vocab_size"), draft.config.get("vocab_size")
    yield from rule_if(
        context, "medusa-truncated-vocabulary", isinstance(cut, int) and isinstance(whole, int) and cut < whole,
        f"truncated_vocab_size {cut} of {whole}: loading takes the token_map for a weight that is missing.",
        where="model", fix="Save the heads over the whole vocabulary.",
    )  # fmt: skip


def _count_heads(config: Mapping[str, Any]) -> int:
    """Return the trained heads as vLLM reads them: any key with "num" and "heads" counts."""
    heads = [value for key, value in config.items() if "num" in key and "heads" in key and isinstance(value, int)]
    return heads[-1] if heads else _DEFAULT_MEDUSA_HEADS


def _find_hidden_states(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    k = resolved.num_speculative_tokens
    yield from rule_if(
        context, "hidden-states-one-token", k not in (None, 1), f"extract_hidden_states takes 1 token, not {k}.",
        where="num_speculative_tokens", fix="Write 1.",
    )  # fmt: skip
    inner = draft.spec.get("draft_model_config")
    hf_config = inner.get("hf_config") if isinstance(inner, Mapping) else None
    ids = hf_config.get("eagle_aux_hidden_state_layer_ids") if isinstance(hf_config, Mapping) else None
    yield from rule_if(
        context, "hidden-states-layer-ids", not ids, "extract_hidden_states is not told which layers to read.",
        where="draft_model_config",
        fix='Add "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}}.',
    )  # fmt: skip
    yield from rule_if(
        context, "hidden-states-padded-batch", draft.spec.get("disable_padded_drafter_batch"),
        "extract_hidden_states works on padded batches only.",
        where="disable_padded_drafter_batch", fix="Leave it out.",
    )  # fmt: skip
    yield from rule_if(
        context, "hidden-states-greedy-on-v2",
        resolved.runner == "V2" and draft.spec.get("draft_sample_method") not in (None, "greedy"),
        "extract_hidden_states on Model Runner V2 takes draft_sample_method greedy only.",
        where="draft_sample_method", fix="Leave it out.",
    )  # fmt: skip
    yield from rule_if(
        context, "hidden-states-without-connector", not context.given.get("kv_transfer_config"),
        "the hidden states leave the server through a KV connector, and none is configured: nothing is written.",
        where="--kv-transfer-config", fix="Configure ExampleHiddenStatesConnector with a shared_storage_path.",
    )  # fmt: skip


def _find_block(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    k, block = resolved.num_speculative_tokens, (draft.config or {}).get("block_size")
    yield from rule_if(
        context,
        "dflash-beyond-block",
        isinstance(block, int) and k is not None and k > block,
        f"num_speculative_tokens {k} exceeds the drafter's block_size {block}: it loads, and was not trained for that.",
        where="num_speculative_tokens",
        fix=f"Write at most {block}, or one less if the block counts the token before the guesses.",
    )


def _find_suffix(context: Context, resolved: Resolved, draft: Draft) -> Iterator[Ruling]:
    k, depth = resolved.num_speculative_tokens, draft.spec.get("suffix_decoding_max_tree_depth")
    depth = depth if isinstance(depth, int) else resolved.fields.get("suffix_decoding_max_tree_depth")
    yield from rule_if(
        context,
        "suffix-beyond-depth",
        isinstance(depth, int) and k is not None and k > depth,
        f"num_speculative_tokens {k} cannot be reached: matched and drafted tokens share a tree of depth {depth}.",
        where="num_speculative_tokens",
        fix="Raise suffix_decoding_max_tree_depth, or keep k below it; memory is reserved for k.",
    )
