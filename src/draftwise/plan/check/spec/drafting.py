"""The drafter's part of SpeculativeConfig: its model, its rewritten architecture, its GPUs and context."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.facts.methods import find_placeholder
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import HfConfig, build_model
from draftwise.plan.check.model.reading import read_hf_config
from draftwise.plan.check.spec.detection import detect_method
from draftwise.plan.check.spec.dspark import resolve_dspark, rewrite_dspark
from draftwise.plan.check.spec.mtp import rewrite_draft
from draftwise.plan.check.spec.renaming import rename_classes
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.spec.tokens import require_tokens, settle_tokens
from draftwise.plan.check.steps import Step, collect

__all__ = ["resolve_drafter"]

_CLASS_PATH = re.compile(r"([A-Za-z_]\w*\.)+[A-Z]\w*")


def resolve_drafter(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in everything that depends on the drafter; nothing without one."""
    if spec.model is None or not spec.known("model"):
        return spec
    spec = yield from _read_drafter(context, spec)
    if not spec.known("draft"):
        # vLLM raised while it read the drafter, so that nothing after it can be said.
        told = "method" in spec.fields.given and spec.known("method")
        return spec if told else spec.undecided("method")
    spec = yield from detect_method(context, spec)
    if not spec.known("draft"):
        return spec
    spec = yield from rename_classes(context, spec)
    spec = yield from rewrite_dspark(context, spec)
    always = spec.facts is not None and spec.facts.parallel == "always"
    spec = replace(spec, parallel_drafting=always or bool(spec.get("parallel_drafting")))
    spec = yield from settle_tokens(context, spec)
    spec = yield from require_tokens(context, spec)
    spec = yield from resolve_dspark(context, spec)
    spec = yield from _settle_parallel_size(context, spec)
    return (yield from _settle_length(context, spec))


def _read_drafter(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the drafter as ModelConfig holds it, or with `draft` left open by its refusal."""
    is_target = spec.model == (context.verifier or context.setup.target)
    own = context.target if is_target else context.drafter
    if own is None:
        return spec if is_target else (yield from _judge_unknown(context, spec))
    if is_target and spec.target is None:
        return spec.undecided("draft")  # what is wrong with the target has been said
    as_medusa = context.rules.applies("medusa-type-injected", spec.method)
    config = yield from read_hf_config(context, own, role="drafter", as_medusa=as_medusa)
    if config is None:
        return spec.undecided("draft")
    if not config.architectures:
        yield from context.rules.ruling(
            "drafter-without-architectures",
            "The drafter has a config.json without architectures, which vLLM looks at first.",
            where="model",
            fix="Add the architectures to its config.json.",
        )
        return spec.undecided("draft")
    if config.kind == "plain":
        config = rewrite_draft(context.release, config)
    if as_medusa and spec.target is not None:  # the release makes their vocabularies agree
        config = config.changed(vocab_size=spec.target.config.get("vocab_size"))
    return (yield from _build_drafter(context, spec, config))


def _build_drafter(context: Context, spec: Spec, config: HfConfig) -> Step[Spec]:
    asked = spec.get("max_model_len") if context.rules.holds("drafter-length-checked-early") else None
    rulings, model = collect(
        build_model(
            context,
            config,
            role="drafter",
            max_model_len=asked,
            quantization=spec.quantization,
            target_length=None if spec.target is None else spec.target.max_model_len,
        )
    )
    yield from rulings
    spec = replace(spec, draft=model)
    return spec.undecided("draft") if rulings else spec


def _judge_unknown(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a drafter of which no config.json was found: those that vLLM cannot find either leave `draft` open."""
    refusals = [*_find_unreadable(context, spec)]
    yield from refusals
    if refusals:
        return spec.undecided("draft")
    yield from context.rules.ruling(
        "drafter-not-here",
        f"The drafter {spec.model!r} is neither a directory here nor in the table of known models; it is judged by its "
        "name alone.",
        where="model",
        fix="Give a directory with its config.json to have the rest checked.",
    )
    return spec


def _find_unreadable(context: Context, spec: Spec) -> Iterator[Ruling]:
    if not spec.model or find_placeholder(spec.model) is not None:
        message, fix = f"The model {spec.model!r} names no checkpoint.", "Give the directory or id of the drafter."
        yield from context.rules.ruling("drafter-config-unreadable", message, where="model", fix=fix)
    elif _CLASS_PATH.fullmatch(spec.model) and context.rules.holds("class-path-without-custom-class"):
        yield from context.rules.ruling(
            "class-path-without-custom-class",
            f"The model {spec.model!r} reads like a Python class, which no method of this release takes.",
            where="model",
            fix="Use 0.22.0 or newer for custom_class.",
        )
    elif fault := next((fault for fault in context.faults if fault.where == spec.model), None):
        yield from context.rules.ruling("drafter-config-unreadable", fault.message, where="model", fix=fault.fix)


def _settle_parallel_size(context: Context, spec: Spec) -> Step[Spec]:
    given = spec.get("draft_tensor_parallel_size")
    target = context.flags.get("tensor_parallel_size", 1)
    if not spec.known("draft_tensor_parallel_size") or not isinstance(target, int):
        return spec
    if given is None:
        is_mlp = spec.draft is not None and spec.draft.config.model_type == "mlp_speculator"
        if not is_mlp or not context.rules.holds("mlp-speculator-on-one-gpu"):
            return replace(spec, draft_tp=target)
        if target > 1:
            yield from context.rules.ruling(
                "mlp-speculator-on-one-gpu",
                "draft_tensor_parallel_size becomes 1: an MLP speculator cannot be split.",
                where="draft_tensor_parallel_size",
                becomes="1",
            )
        return replace(spec, draft_tp=1)
    if given in (1, target):
        return replace(spec, draft_tp=given)
    yield from context.rules.ruling(
        "draft-tensor-parallel",
        f"draft_tensor_parallel_size is {given}; it can be 1 or the target's tensor_parallel_size, {target}.",
        where="draft_tensor_parallel_size",
        fix=f"Leave it out, or give {target}.",
    )
    return spec.undecided("draft_tensor_parallel_size")


def _settle_length(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the drafter's context length, or without where the one asked for is too long."""
    asked = spec.get("max_model_len")
    if spec.draft is None or spec.target is None or not spec.known("max_model_len"):
        return replace(spec, draft_len=asked)
    draft, target = spec.draft.max_model_len, spec.target.max_model_len
    if asked is None:
        return replace(spec, draft_len=min(draft, target))
    for limit, whose in ((draft, "drafter"), (target, "target")):
        if asked > limit:
            yield from context.rules.ruling(
                "draft-longer-than-model",
                f"The drafter's max_model_len is {asked}, and the {whose}'s context is {limit} tokens.",
                where="max_model_len",
                fix=f"Give at most {min(draft, target)}.",
            )
            return spec
    return replace(spec, draft_len=asked)
