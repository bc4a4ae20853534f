"""SpeculativeConfig as the release completes it: drafters, methods without weights, and the keys of all methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.methods import methods_where
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.model import Model
from draftwise.plan.check.model.model_config import find_architecture
from draftwise.plan.check.model.target import find_drafter_parallel, find_stages
from draftwise.plan.check.spec.drafter_config import resolve_drafter
from draftwise.plan.check.spec.speculative_config import Spec, read_spec
from draftwise.plan.check.stages import Context, Step

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
    if package not in context.packages:
        code = "suffix-package" if context.installed is None else "suffix-needs-arctic"
        yield from context.rules.ruling(code, package=package)


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
    """Put the class that dumps hidden states in the place of a drafter. It is split as the target is."""
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
_ADAPTIVE = "enable_adaptive_verification"
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
_LIMITED_TARGETS = ("target-not-for-hidden-states", "aux-targets-extract-hidden-states", "aux-targets-dflash")
"""Rules of old releases, each about the methods that draft for a list of targets only."""
_PARTS = frozenset({"text_config", "vision_config", "audio_config"})
"""Parts of a config.json that vLLM's config object of a multimodal model nests."""
_TOKENS = "num_speculative_tokens"
_MAPPING = "use_heterogeneous_vocab"
_SAMPLING = "rejection_sample_method"
_RATES, _LENGTH = "synthetic_acceptance_rates", "synthetic_acceptance_length"
_WINDOW, _LONGEST_WINDOW = "fly_window_size", 6


def _is_for_plugin(context: Context) -> bool:
    """Say whether the config is one of arctic-inference, and the server has the package, or turns it on."""
    methods = ["arctic", *({"suffix"} - context.release.table("methods").keys())]
    is_own = context.keys.get("method") in methods or "enable_suffix_decoding" in context.keys
    has = "arctic-inference" in context.packages or context.env.get("ARCTIC_INFERENCE_ENABLED") == "1"
    return is_own and has


def resolve(context: Context, target: Model | None) -> Step[Resolved | None]:
    """Return the resolved speculative config, as far as it can be known, and yield every finding about it."""
    if _is_for_plugin(context) and context.rules.holds("plugin-reads-config"):
        yield from context.rules.ruling("plugin-reads-config")
        return None
    if context.rules.applies("draft-model-refused", context.keys.get("method", "")):
        yield from context.rules.ruling("draft-model-refused")
    spec = yield from read_spec(context, target)
    if spec.facts is not None and spec.facts.weights == "none":
        spec = yield from resolve_model_free(context, spec)
    elif spec.known("method"):
        spec = yield from resolve_drafter(context, replace(spec, lookup=(0, 0)))
    spec = yield from _verify(context, spec)
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
        draft_architectures=None if spec.draft is None else spec.draft.config.architectures,
        target_architectures=None if spec.target is None else spec.target.config.architectures,
        draft_max_model_len=spec.draft_len,
        quantization=spec.quantization,
        parallel_drafting=spec.parallel_drafting or bool(spec.get("parallel_drafting")),
        synthetic_acceptance_rates=spec.rates,
        fields={key: value for key, value in spec.fields.values.items() if key not in _NAMED} | dict(spec.filled),
    )


def _to_whole(tokens: Any) -> int | None:
    """Return the number of tokens. Old releases let 3.0 pass for 3."""
    if isinstance(tokens, float):
        return int(tokens) if tokens.is_integer() else None
    return tokens if isinstance(tokens, int) else None


def _verify(context: Context, spec: Spec) -> Step[Spec]:
    """Check the whole config, in vLLM's order, and return it with what only the whole decides."""
    yield from _find_keys_of_methods(context, spec)
    if spec.get("tensor_parallel_size") is not None:
        yield from context.rules.ruling("tensor-parallel-size-key")
    spec = yield from _verify_tokens(context, spec)
    yield from _find_lm_head(context, spec)
    spec = replace(spec, rates=(yield from _resolve_synthetic(context, spec)))
    if spec.draft is not None and spec.draft_tp is not None and spec.known("draft") and _splits_drafter(spec):
        yield from find_drafter_parallel(context, spec.draft.config, spec.draft_tp)
    limit = spec.get("disable_by_batch_size")
    if limit is not None and limit < 2:
        yield from context.rules.ruling("batch-limit-below-two", limit=limit)
    yield from _find_limited_targets(context, spec)
    yield from _find_vocabularies(context, spec)
    return (yield from _resolve_fly(context, spec))


def _splits_drafter(spec: Spec) -> bool:
    return spec.facts is None or spec.facts.weights != "none"


def _find_keys_of_methods(context: Context, spec: Spec) -> Iterator[Ruling]:
    if not spec.known("method"):
        return
    mtp_key = "index_share_for_mtp_iteration"
    if spec.get(mtp_key) is not None and spec.method is not None and not spec.reads(mtp_key):
        yield from context.rules.ruling("mtp-only-key")
    if spec.get(_ADAPTIVE) and not context.rules.applies("dspark-has-confidence", spec.method):
        yield from context.rules.ruling("adaptive-needs-dspark", method=spec.method)
        if spec.get("use_local_argmax_reduction"):
            yield from context.rules.ruling("adaptive-needs-logits")
    if spec.get("xpress_topc") is not None and spec.draft is not None and _splits_drafter(spec):
        assert spec.draft is not None
        top, config = spec.get("xpress_topc"), spec.draft.config
        size = config.get("draft_vocab_size") or config.get("vocab_size")
        vocabulary = size if isinstance(size, int) else 0
        if not _XPRESS & set(config.architectures) or not spec.reads("xpress_topc"):
            yield from context.rules.ruling("xpress-only-key")
        elif top > vocabulary:
            yield from context.rules.ruling("xpress-topc-range", top=top, vocabulary=vocabulary)


def _find_lm_head(context: Context, spec: Spec) -> Iterator[Ruling]:
    key = "draft_lm_head_quantization"
    if spec.get(key) is None or not spec.known("method"):
        return
    is_gemma4 = spec.draft is not None and spec.draft.config.model_type == "gemma4_mtp"
    if not spec.reads(key) or is_gemma4:
        able = " or ".join(name for name, method in methods_where().items() if key in method.keys)
        yield from context.rules.ruling(
            "lm-head-quantization-method", drafter="Gemma 4 MTP" if is_gemma4 else spec.method, able=able
        )


def _find_limited_targets(context: Context, spec: Spec) -> Iterator[Ruling]:
    is_extraction = spec.facts is not None and spec.facts.drafts_from == "none"
    if is_extraction and spec.target is not None and not _PARTS.isdisjoint(spec.target.config.values):
        yield from context.rules.ruling("hidden-states-nested-target", method=spec.method)
    if is_extraction and spec.target is not None and str(context.flags.get("model_impl")) == "transformers":
        own_code = spec.target.config.values.get("auto_map")
        if not isinstance(own_code, Mapping) or not any(str(name).startswith("AutoModel") for name in own_code):
            yield from context.rules.ruling("hidden-states-of-transformers", method=spec.method)
    allowed = context.release.table("aux_targets")
    if not allowed or spec.target is None or not spec.known("method"):
        return
    if spec.method is None or not any(context.rules.applies(code, spec.method) for code in _LIMITED_TARGETS):
        return
    kind = spec.target.config.text.model_type
    if not any(name in kind for name in allowed):
        yield from context.rules.ruling("target-not-for-hidden-states", kind=kind, named=spec.method, allowed=allowed)


def _verify_tokens(context: Context, spec: Spec) -> Step[Spec]:
    if not spec.known(_TOKENS):
        return spec
    tokens = spec.tokens
    if tokens is None:
        if not spec.known("model", "draft"):
            return spec
        code = "tokens-missing"
    elif not isinstance(tokens, (int, float)):
        code = "tokens-not-a-number"
    elif tokens <= 0:
        code = "tokens-not-positive"
    else:
        if isinstance(tokens, float) and not tokens.is_integer():
            yield from context.rules.ruling("tokens-not-whole-lookahead", tokens=tokens)
        return spec
    yield from context.rules.ruling(code, tokens=tokens)
    return spec.undecided(_TOKENS) if context.rules.holds(code) else spec


def _find_vocabularies(context: Context, spec: Spec) -> Iterator[Ruling]:
    if not spec.known("method", _MAPPING):
        return
    if spec.get(_MAPPING):
        if not spec.reads(_MAPPING):
            yield from context.rules.ruling("hetero-needs-draft-model")
        if spec.get("draft_sample_method") not in (None, "greedy"):
            yield from context.rules.ruling("hetero-needs-greedy")
        if spec.get("use_local_argmax_reduction"):
            yield from context.rules.ruling("hetero-needs-logits")
    elif spec.facts is not None and spec.facts.drafts_from == "own_model":
        yield from _find_difference(context, spec)


def _find_difference(context: Context, spec: Spec) -> Iterator[Ruling]:
    if spec.draft is None or spec.target is None:
        return
    draft, target = (model.config.text.get("vocab_size", 0) for model in (spec.draft, spec.target))
    if draft != target:
        fix = "Use a drafter with the target's tokenizer"
        if context.rules.holds("hetero-needs-draft-model"):
            fix += f', or add "{_MAPPING}": true'
        yield from context.rules.ruling(
            "vocabulary-sizes-differ",
            fix=f"{fix}.",
            where="model",
            message=f"The drafter has a vocabulary of {draft} tokens, and the target one of {target}.",
        )


def _resolve_synthetic(context: Context, spec: Spec) -> Step[tuple[float, ...] | None]:
    """Return the rate at which each position is accepted. None without synthetic acceptance."""
    if not spec.known(_SAMPLING, _RATES, _LENGTH):
        return None
    rates, length = spec.get(_RATES), spec.get(_LENGTH)
    if spec.get(_SAMPLING) != "synthetic":
        if rates is not None or length is not None:
            key = _RATES if rates is not None else _LENGTH
            yield from context.rules.ruling("synthetic-needs-method", key=key)
        return None
    if not context.rules.holds("synthetic-needs-method"):
        return None
    if (rates is None) == (length is None):
        yield from context.rules.ruling("synthetic-needs-one")
        return None
    if not isinstance(spec.tokens, int) or not spec.known("num_speculative_tokens"):
        return None
    if rates is None:
        return (yield from _spread_length(context, float(length), spec.tokens))
    faults = [*_find_rate_faults(context, rates, spec.tokens)]
    yield from faults
    return None if faults else tuple(rates)


def _find_rate_faults(context: Context, rates: Sequence[float], tokens: int) -> Iterator[Ruling]:
    if len(rates) != tokens:
        wrong = f"has {len(rates)} entries; num_speculative_tokens is {tokens}"
    elif not all(0 <= rate <= 1 for rate in rates):
        wrong = "has an entry outside 0 to 1"
    elif any(later > earlier for earlier, later in pairwise(rates)):
        wrong = "rises, but a position cannot be accepted more often than the one before it"
    else:
        return
    yield from context.rules.ruling("synthetic-rates", wrong=wrong, tokens=tokens)


def _spread_length(context: Context, length: float, tokens: int) -> Step[tuple[float, ...] | None]:
    """Return the rate of each position for a mean length: whole positions first, then the fraction."""
    if not 1 <= length <= tokens + 1:
        yield from context.rules.ruling("synthetic-length", length=length, tokens=tokens, most=tokens + 1)
        return None
    whole = int(length - 1)
    rates = [1.0] * whole + [length - 1 - whole] + [0.0] * (tokens - whole - 1)
    return tuple(rates[:tokens])


def _resolve_fly(context: Context, spec: Spec) -> Step[Spec]:
    if spec.get(_SAMPLING) != "fly" or not spec.known("num_speculative_tokens", "method"):
        return spec
    window = spec.get(_WINDOW)
    if spec.facts is not None and spec.facts.drafts_from == "none":
        yield from context.rules.ruling("fly-needs-drafts", method=spec.method)
    elif not isinstance(spec.tokens, int):  # what is wrong with it is said where it is judged
        return spec
    elif spec.tokens < 2:
        yield from context.rules.ruling("fly-needs-two-tokens")
    elif window is not None and window >= spec.tokens:
        yield from context.rules.ruling(
            "fly-window-too-long", window=window, tokens=spec.tokens, most=min(_LONGEST_WINDOW, spec.tokens - 1)
        )
    else:
        yield from context.rules.ruling("fly-is-lossy")
        length = window or min(_LONGEST_WINDOW, spec.tokens - 1)
        return replace(spec, filled={**spec.filled, _WINDOW: length})
    return spec
