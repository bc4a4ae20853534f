"""The closing checks of SpeculativeConfig, which look at the whole: keys of other methods, GPUs, vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.facts.methods import methods_where
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.target import find_drafter_parallel
from draftwise.plan.check.spec.acceptance import resolve_fly, resolve_synthetic
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.spec.tokens import verify_tokens
from draftwise.plan.check.spec.vocabularies import find_vocabularies
from draftwise.plan.check.steps import Step

__all__ = ["verify"]

_ADAPTIVE = "enable_adaptive_verification"
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
_LIMITED_TARGETS = ("target-not-for-hidden-states", "aux-targets-extract-hidden-states", "aux-targets-dflash")
"""Rules of old releases, each about the methods that draft for a list of targets only."""


def verify(context: Context, spec: Spec) -> Step[Spec]:
    """Check the whole config, in vLLM's order, and return it with what only the whole decides."""
    yield from _find_keys_of_methods(context, spec)
    if spec.get("tensor_parallel_size") is not None:
        yield from context.rules.ruling(
            "tensor-parallel-size-key",
            "tensor_parallel_size is not a key to set for a drafter.",
            where="tensor_parallel_size",
            fix="Write draft_tensor_parallel_size instead.",
        )
    spec = yield from verify_tokens(context, spec)
    yield from _find_lm_head(context, spec)
    spec = replace(spec, rates=(yield from resolve_synthetic(context, spec)))
    if spec.draft is not None and spec.draft_tp is not None and spec.known("draft") and _splits_drafter(spec):
        yield from find_drafter_parallel(context, spec.draft.config, spec.draft_tp)
    yield from _find_batch_limit(context, spec)
    yield from _find_limited_targets(context, spec)
    yield from find_vocabularies(context, spec)
    return (yield from resolve_fly(context, spec))


def _splits_drafter(spec: Spec) -> bool:
    return spec.facts is None or spec.facts.has_weights


def _find_keys_of_methods(context: Context, spec: Spec) -> Iterator[Ruling]:
    if not spec.known("method"):
        return
    mtp_key = "index_share_for_mtp_iteration"
    if spec.get(mtp_key) is not None and spec.method is not None and not spec.reads(mtp_key):
        message = f"{mtp_key} is for the method mtp only."
        yield from context.rules.ruling("mtp-only-key", message, where=mtp_key, fix="Remove it.")
    if spec.get(_ADAPTIVE) and not context.rules.applies("dspark-has-confidence", spec.method):
        yield from _find_adaptive(context, spec)
    if spec.get("xpress_topc") is not None and spec.draft is not None and _splits_drafter(spec):
        yield from _find_xpress(context, spec)


def _find_adaptive(context: Context, spec: Spec) -> Iterator[Ruling]:
    yield from context.rules.ruling(
        "adaptive-needs-dspark",
        f"{_ADAPTIVE} is for dspark only in this release, and the method is {spec.method}.",
        where=_ADAPTIVE,
        fix="Remove it, or use a release from 0.30.0 on.",
    )
    if spec.get("use_local_argmax_reduction"):
        yield from context.rules.ruling(
            "adaptive-needs-logits",
            f"{_ADAPTIVE} reads the draft logits, which use_local_argmax_reduction never makes.",
            where=_ADAPTIVE,
            fix="Set one of the two only.",
        )


def _find_xpress(context: Context, spec: Spec) -> Iterator[Ruling]:
    assert spec.draft is not None
    top, config = spec.get("xpress_topc"), spec.draft.config
    size = config.get("draft_vocab_size") or config.get("vocab_size")
    vocabulary = size if isinstance(size, int) else 0
    if not _XPRESS & set(config.architectures) or not spec.reads("xpress_topc"):
        message = "xpress_topc is for DFlash drafters with an XPress refiner only."
        yield from context.rules.ruling("xpress-only-key", message, where="xpress_topc", fix="Remove it.")
    elif top > vocabulary:
        yield from context.rules.ruling(
            "xpress-topc-range",
            f"xpress_topc is {top}, and the draft vocabulary has {vocabulary} tokens.",
            where="xpress_topc",
            fix=f"Give at most {vocabulary}.",
        )


def _find_lm_head(context: Context, spec: Spec) -> Iterator[Ruling]:
    key = "draft_lm_head_quantization"
    if spec.get(key) is None or not spec.known("method"):
        return
    is_gemma4 = spec.draft is not None and spec.draft.config.model_type == "gemma4_mtp"
    if not spec.reads(key) or is_gemma4:
        able = " or ".join(name for name, method in methods_where().items() if key in method.keys)
        yield from context.rules.ruling(
            "lm-head-quantization-method",
            f"{key} does not work with {'Gemma 4 MTP' if is_gemma4 else spec.method}.",
            where=key,
            fix=f"Use it with {able}, or remove it.",
        )


def _find_batch_limit(context: Context, spec: Spec) -> Iterator[Ruling]:
    limit = spec.get("disable_by_batch_size")
    if limit is not None and limit < 2:
        yield from context.rules.ruling(
            "batch-limit-below-two",
            f"disable_by_batch_size is {limit}; it must be 2 or more.",
            where="disable_by_batch_size",
            fix="Remove it: the V1 engine never reads it.",
        )


def _find_limited_targets(context: Context, spec: Spec) -> Iterator[Ruling]:
    """Yield that the target is not on an old release's list of those that give out hidden states."""
    allowed = context.release.table("aux_targets")
    if not allowed or spec.target is None or not spec.known("method"):
        return
    if spec.method is None or not any(context.rules.applies(code, spec.method) for code in _LIMITED_TARGETS):
        return
    kind = spec.target.config.text.model_type
    if not any(name in kind for name in allowed):
        yield from context.rules.ruling(
            "target-not-for-hidden-states",
            f"The target is of type {kind!r}; in this release {spec.method} works with targets of "
            f"{', '.join(allowed)} only.",
            where="target",
            fix="Use 0.22.0 or newer, where the model class decides, or another method.",
        )
