"""Methods without weights: n-gram lookup, suffix trees, a class of the user's own, and dumped hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import find_architecture
from draftwise.plan.check.model.target import find_stages
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["resolve_model_free"]

_DEFAULT_LOOKUP = 5
_HIDDEN_STATES_CLASS = "ExtractHiddenStatesModel"
_SUFFIX_RANGES: Mapping[str, tuple[float, float | None]] = {
    "suffix_decoding_max_tree_depth": (1, None),
    "suffix_decoding_max_cached_requests": (0, None),
    "suffix_decoding_max_spec_factor": (0, None),
    "suffix_decoding_min_token_prob": (0, 1),
}


def resolve_model_free(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in and check what a method without a drafter needs."""
    facts = spec.facts
    assert facts is not None
    spec = replace(spec, draft_tp=spec.get("draft_tensor_parallel_size"))
    if spec.reads("prompt_lookup_max"):
        return (yield from _resolve_lookup(context, spec))
    if facts.drafts_from == "text":
        lookup = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
        yield from _find_suffix_package(context, facts.package)
        return (yield from _resolve_suffix(context, replace(spec, lookup=lookup)))
    spec = replace(spec, lookup=(0, 0))
    if facts.drafts_from == "none":
        return (yield from _resolve_hidden_states(context, spec))
    return spec


def _resolve_lookup(context: Context, spec: Spec) -> Step[Spec]:
    if not spec.known("prompt_lookup_min", "prompt_lookup_max"):
        return spec
    low, high = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
    if low is None and high is None:
        yield from context.rules.ruling("lookup-default", default_lookup=_DEFAULT_LOOKUP)
        low = high = _DEFAULT_LOOKUP
    low = high if low is None else low
    high = low if high is None else high
    yield from _find_lookup_faults(context, low, high)
    return replace(spec, lookup=(low, high)) if 1 <= low <= high else spec


def _find_lookup_faults(context: Context, low: int, high: int) -> Iterator[Ruling]:
    for key, value in (("prompt_lookup_min", low), ("prompt_lookup_max", high)):
        if value < 1:
            yield from context.rules.ruling("lookup-below-one", key=key, value=value)
            return
    if low > high:
        yield from context.rules.ruling("lookup-min-above-max", low=low, high=high)


def _find_suffix_package(context: Context, package: str) -> Iterator[Ruling]:
    """Yield that the package is missing, or that it cannot be seen from here whether it is."""
    code = "suffix-package" if context.installed is None else "suffix-needs-arctic"
    if package not in (context.installed or ()):
        unseen = ", which vLLM does not install" if context.installed is None else ", and it is not there"
        yield from context.rules.ruling(
            code,
            message=f"The method suffix needs the package {package} in the server's environment{unseen}: without it "
            "the server ends with an ImportError.",
            where="method",
            fix=f"Run pip install {package}==0.1.1 there.",
        )


def _resolve_suffix(context: Context, spec: Spec) -> Step[Spec]:
    depth = spec.get("suffix_decoding_max_tree_depth")
    if spec.tokens is None and spec.known("num_speculative_tokens", "suffix_decoding_max_tree_depth"):
        spec = replace(spec, tokens=depth)
        yield from context.rules.ruling("suffix-default-tokens", depth=depth)
    for key, (low, high) in _SUFFIX_RANGES.items():
        value = spec.get(key)
        if value is None:
            continue
        if not (value >= low and (high is None or value <= high)):  # which NaN is not either
            span = f"{low} or more" if high is None else f"{low} to {high}"
            yield from context.rules.ruling("suffix-out-of-range", key=key, value=value, span=span)
    return spec


def _resolve_hidden_states(context: Context, spec: Spec) -> Step[Spec]:
    """Put the class that dumps hidden states in the place of a drafter; it is split as the target is."""
    spec = replace(spec, model=spec.method)
    names = (_HIDDEN_STATES_CLASS,)
    if find_architecture(context, names) is None:
        yield from context.rules.ruling(
            "drafter-class-missing",
            fix="Use a release that has it.",
            where="method",
            message=f"The method {spec.method} needs the class {_HIDDEN_STATES_CLASS}, which vLLM {context.release} "
            "does not have.",
        )
    if spec.target is None:
        return spec
    config = spec.target.config.changed(architectures=list(names))
    yield from find_stages(context, config, context.flags.get("pipeline_parallel_size", 1), "drafter")
    return replace(spec, draft=replace(spec.target, config=config), draft_len=spec.target.max_model_len)
