"""Attention and expert backends that a drafter needs, takes by itself, or cannot share with its target."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import Draft, get_experts, holds, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_backends"]

_WITH_ATTENTION = ("eagle", "eagle3", "mtp", "draft_model", "dflash")


def find_backends(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the attention and expert backends mean for the drafter."""
    draft = Draft.resolved(context, resolved)
    target = _read_name(context.given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND"))
    own = _read_name(draft.spec.get("attention_backend"))
    if draft.method == "dflash" and not _is_causal(context, draft):
        yield from _find_non_causal(context, resolved, target, own)
    yield from rule_if(
        context, "draft-backend-not-inherited",
        target and not own and _picks_its_own(context, resolved),
        f"--attention-backend {target} holds for the target; the drafter picks its own.",
        where="--attention-backend", fix=f'Add "attention_backend": "{target}" to the speculative config to share it.',
    )  # fmt: skip
    k = resolved.num_speculative_tokens
    yield from rule_if(
        context, "hpc-attention-limit", target == "HPC_ATTN" and k is not None and k > 3,
        f"HPC attention verifies at most 3 drafted tokens, and num_speculative_tokens is {k}.",
        where="num_speculative_tokens", fix="Write at most 3, or take another --attention-backend.",
    )  # fmt: skip
    yield from _find_cache_type(context, draft)
    yield from _find_experts(context, draft)


def _picks_its_own(context: Context, resolved: Resolved) -> bool:
    flag = "attention_backend" in context.given
    return flag and resolved.runner == "V1" and resolved.method in _WITH_ATTENTION


def _read_name(given: object) -> str:
    name = given.upper() if isinstance(given, str) else ""
    return "" if name == "AUTO" else name


def _is_causal(context: Context, draft: Draft) -> bool:
    inner = (draft.config or {}).get("dflash_config")
    return holds(context, "dflash-may-be-causal") and isinstance(inner, dict) and bool(inner.get("causal"))


def _find_non_causal(context: Context, resolved: Resolved, target: str, own: str) -> Iterator[Ruling]:
    """Judge backends by whether they attend to later tokens, as DFlash's block does."""
    table = context.release.table("noncausal_backends")
    able = sorted(name for name, does in table.items() if does)
    text = f"attends to earlier tokens only, and DFlash's block both ways. {', '.join(able)} can in {context.release}."
    unread = holds(context, "dflash-attention-backend-ignored-on-v2")
    if own and own not in able:
        yield from rule_if(
            context, "dflash-draft-backend", not unread or resolved.runner == "V1",
            f"{own} {text}", where="attention_backend", fix="Leave it out: the drafter then finds one by itself.",
        )  # fmt: skip
    if target and target not in able:
        yield from rule_if(
            context, "dflash-target-backend", True, f"{target} is also the drafter's backend here, and {text}",
            where="--attention-backend", fix=f"Write {able[0]}, or leave it out: vLLM then finds one." if able else "",
        )  # fmt: skip
        yield from rule_if(
            context, "dflash-target-backend-on-v2", resolved.runner == "V2",
            f"{target} is also the drafter's backend on Model Runner V2, and {text}",
            where="--attention-backend", fix="Leave it out, or set VLLM_USE_V2_MODEL_RUNNER=0.",
        )  # fmt: skip


def _find_cache_type(context: Context, draft: Draft) -> Iterator[Ruling]:
    """Judge a KV-cache type chosen for the target, which the drafter's own layers share."""
    given = context.given.get("kv_cache_dtype")
    shared = given not in (None, "auto") and not draft.spec.get("kv_cache_dtype")
    text = f"the drafter keeps its keys and values in {given} too."
    own = "kv_cache_dtype" in context.release.table("spec_fields")
    fix = (
        'Compare acceptance with "kv_cache_dtype": "auto" in the speculative config.' if own else "Compare acceptance."
    )
    yield from rule_if(
        context, "kv-cache-type-inherited", shared and draft.method in _WITH_ATTENTION, text,
        where="--kv-cache-dtype", fix=fix,
    )  # fmt: skip


def _find_experts(context: Context, draft: Draft) -> Iterator[Ruling]:
    """Judge an expert backend chosen for a quantised target, which a drafter with plain experts inherits."""
    target, drafter = context.target, context.drafter
    if target is None or drafter is None:
        return
    quantized = target.config.get("quantization_config") or context.given.get("quantization")
    own = drafter.config.get("quantization_config") or draft.spec.get("quantization")
    backend = context.given.get("moe_backend")
    mixed = quantized and not own and get_experts(drafter)
    yield from rule_if(
        context,
        "moe-backend-inherited",
        mixed and backend not in (None, "auto") and "moe_backend" not in draft.spec,
        f"--moe-backend {backend} was chosen for the quantised target; the drafter's experts are not quantised and "
        "inherit it, and not every backend has kernels for both.",
        where="moe_backend",
        fix='Add "moe_backend": "auto" or "triton" to the speculative config.',
    )
