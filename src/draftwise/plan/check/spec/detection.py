"""Which method vLLM takes a drafter for: by its name, by its config.json, or by what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.facts.methods import get_method
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import HfConfig
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["detect_method"]

_LAYER_PER_TOKEN = ("step3p5_mtp", "step5_mtp", "inkling_mtp")
"""Types of drafters with a layer of their own for each token, for which no repetition is warned of."""


def detect_method(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the method that the drafter's name and its config.json decide."""
    if spec.facts is not None and spec.facts.kept_by_vllm:
        return spec
    found = _find_method(context, spec)
    if found is None:
        return (yield from _settle_rest(context, spec))
    before = spec.method
    method, by_name = found
    spec = replace(spec, method=method)
    if not by_name:
        spec = yield from _check_mtp(context, spec)
    if method != before:
        yield from _find_changed(context, spec, before, "name" if by_name else "config.json")
    return spec


def _check_mtp(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a drafter that turned out to be MTP layers; vLLM dies of comparing an unset number of tokens with 1."""
    if spec.facts is None or spec.facts.weights != "target":
        return spec
    if spec.target is not None and spec.target.config.model_type == "deepseek_v41":
        yield from context.rules.ruling(
            "mtp-not-for-v41",
            "The target has no MTP layers: its checkpoint ships DSpark stages.",
            where="target",
            fix='Write "method": "dspark".',
        )
    if spec.tokens is None and spec.known("num_speculative_tokens"):
        yield from context.rules.ruling(
            "mtp-needs-tokens",
            "num_speculative_tokens must be given for an MTP drafter: without it vLLM fails with a TypeError.",
            where="num_speculative_tokens",
            fix='Add "num_speculative_tokens": 1.',
        )
        return spec.undecided("num_speculative_tokens", "draft")
    has_own_layers = spec.draft is not None and spec.draft.config.model_type in _LAYER_PER_TOKEN
    if isinstance(spec.tokens, int) and spec.tokens > 1 and not has_own_layers:
        yield from context.rules.ruling(
            "mtp-repeats-layer",
            f"num_speculative_tokens is {spec.tokens}, and the same MTP layer is run again for each further token, so "
            "that later ones are accepted less often.",
            where="num_speculative_tokens",
        )
    return spec


def _find_method(context: Context, spec: Spec) -> tuple[str, bool] | None:
    """Return the method that the drafter stands for, and whether its name alone says so."""
    table = context.release.table("method_inference")
    name = (spec.model or "").lower()
    for method in table["order"]:
        for condition in table[method]:
            if "name" in condition:
                if condition["name"] in name:
                    return method, True
            elif spec.draft is not None and _meets(context, spec.draft.config, condition):
                return method, False
    return None


def _meets(context: Context, config: HfConfig, condition: Mapping[str, str]) -> bool:
    if "model_type_in" in condition:
        row = context.release.table("methods").get(config.model_type)
        return row is not None and row["group"] == condition["model_type_in"]
    if "architecture" in condition and condition["architecture"] not in config.architectures:
        return False
    return condition.get("model_type", config.model_type) == config.model_type


def _find_changed(context: Context, spec: Spec, before: str | None, by: str) -> Iterator[Ruling]:
    if before is None or "method" not in spec.fields.given:
        return
    yield from context.rules.ruling(
        "drafter-decides-method",
        f"The drafter's {by} makes vLLM run {spec.model!r} as {spec.method}, although the method given is {before!r}.",
        where="model",
        fix=f'Write "method": "{spec.method}", or rename the directory.',
        becomes=spec.method or "",
    )


def _settle_rest(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a drafter that neither name nor config.json assigns to a method."""
    before = spec.method
    if spec.draft is None:
        # The config.json is not here: what was asked for is the best guess.
        return spec if before is not None else spec.undecided("method")
    asks_draft_model = spec.facts is not None and spec.facts.drafts_from == "own_model"
    if context.rules.holds("everything-else-is-draft-model"):
        spec = replace(spec, method="draft_model")
        if not asks_draft_model:
            yield from _find_changed(context, spec, before, "config.json")
        return spec
    if not asks_draft_model or context.rules.holds("draft-model-not-supported"):
        return (yield from _refuse(context, spec, asks_draft_model))
    if "method" not in spec.fields.given:
        yield from _find_unnamed_head(context, spec)
    return spec


def _refuse(context: Context, spec: Spec, asks_draft_model: bool) -> Step[Spec]:
    if asks_draft_model and context.rules.holds("draft-model-refused"):
        return spec.undecided("method", "draft")  # refused before anything else
    named = spec.method is not None
    said = f"cannot run as {spec.method}" if named else "fits no method that can be told without `method`"
    kind = "" if spec.draft is None else spec.draft.config.model_type
    message = f"The drafter {spec.model!r} {said}: its config.json is of type {kind!r}."
    fix = "Use a release from 0.15.0 on."
    yield from context.rules.ruling("draft-model-not-supported", message, where="model", fix=fix)
    yield from context.rules.ruling("drafter-fits-no-method", message, where="model", fix=_suggest_method(spec))
    return replace(spec.undecided("method", "draft"), method=None, draft=None)


def _suggest_method(spec: Spec) -> str:
    if (head := _find_head(spec)) is not None:
        return f'Write "method": "{head}".'
    return 'Write "method": "draft_model" for a plain language model, or use a checkpoint of the method you want.'


def _find_unnamed_head(context: Context, spec: Spec) -> Iterator[Ruling]:
    if (head := _find_head(spec)) is not None:
        yield from context.rules.ruling(
            "head-taken-for-draft-model",
            f"The drafter {spec.model!r} is a head for {head} by its architecture, but without `method` it runs as an "
            "independent draft model.",
            where="method",
            fix=f'Write "method": "{head}".',
            becomes="draft_model",
        )


def _find_head(spec: Spec) -> str | None:
    """Return the method that the drafter's architectures speak of, of those that vLLM does not see in them."""
    names = [name.lower() for name in spec.draft_names]
    for method in get_rule("head-taken-for-draft-model").methods:
        if any(part in name for part in get_method(method).architectures for name in names):
            return method
    return None
