"""The drafter's part of SpeculativeConfig: its model, the tokens it drafts, its GPUs and its context."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise.core import Effect, Ruling, Severity
from draftwise.knowledge.methods import find_placeholder
from draftwise.knowledge.model_copies import find_names
from draftwise.knowledge.models import is_hub_name
from draftwise.plan.check.model.hf_config import find_other_name, read_hf_config
from draftwise.plan.check.model.model_config import HfConfig, build_model, find_quantization
from draftwise.plan.check.model.target import find_mistral_format
from draftwise.plan.check.spec.detection import (
    TOP_K_KEY,
    detect_method,
    find_missing_modules,
    find_published,
    name_class,
    rewrite_draft,
)
from draftwise.plan.check.spec.speculative_config import Spec
from draftwise.plan.check.stages import Context, Step, collect

if TYPE_CHECKING:
    from draftwise.knowledge.published_drafters import PublishedDrafter

_CLASS_PATH = re.compile(r"([A-Za-z_]\w*\.)+[A-Z]\w*")
_TOKENS = "num_speculative_tokens"
_DSPARK_STAGES = ("DSparkDraftModel", "DSparkV41DraftModel")
"""Classes of the stages that DeepSeek's checkpoints ship."""
_TREE = "speculative_token_tree"
_LONGEST_TREE = 1000
"""The tree of a chain grows with the square of its length; a longer one is not written out."""
_TOP_K_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
_OMNI = "Qwen3OmniDSparkModel"
_OMNI_TARGETS = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
_ATTENTION = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def resolve_drafter(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in everything that depends on the drafter, if there is one."""
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
    copy = None if context.target is None else context.target.copy
    drafts_itself = spec.facts is not None and spec.facts.weights == "target"
    if copy is not None and not copy.keeps_modules and drafts_itself and spec.get("model") in (None, copy.name):
        yield from context.rules.ruling("copy-modules-unknown", name=copy.name, base=copy.base_name)
    spec = yield from name_class(context, spec)
    always = spec.facts is not None and spec.facts.parallel == "always"
    spec = replace(spec, parallel_drafting=always or bool(spec.get("parallel_drafting")))
    spec = yield from _settle_tokens(context, spec)
    spec = yield from _require_tokens(context, spec)
    yield from _find_other_stages(context, spec)
    spec = yield from _resolve_dspark(context, spec)
    spec = yield from _settle_parallel_size(context, spec)
    return (yield from _settle_length(context, spec))


def _read_drafter(context: Context, spec: Spec) -> Step[Spec]:
    """Return the config with the drafter as ModelConfig holds it, or with `draft` left open by its refusal."""
    is_target = spec.model == (context.verifier or context.setup.target)
    own = context.target if is_target else context.drafter
    if own is None or own.is_partial:
        yield from find_quantization(context, spec.get("quantization"), "drafter")
        if not is_target:
            return (yield from _judge_unknown(context, spec))
        return spec if own is None else (yield from find_missing_modules(context, spec, HfConfig(own.config)))
    if not is_target:
        yield from find_other_name(context.rules, own.name, own, where="model")
        if is_hub_name(own.name) and (published := find_published(context, spec)) is not None:
            yield from _find_other_use(context, published)
    if is_target and spec.target is None:
        return spec.undecided("draft")  # what is wrong with the target has been said
    if not is_target and context.rules.holds("drafter-format-without-file"):
        refusals = [*find_mistral_format(context, own, role="drafter")]
        yield from refusals
        if any(each.effect is Effect.REJECTED for each in refusals):
            return spec.undecided("draft")
    as_medusa = context.rules.applies("medusa-type-injected", spec.method)
    config = yield from read_hf_config(context, own, role="drafter", as_medusa=as_medusa)
    if config is None:
        return spec.undecided("draft")
    if not config.architectures:
        yield from context.rules.ruling("drafter-without-architectures")
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
    published = find_published(context, spec)
    known = "is neither a directory here nor a model that draftwise knows"
    if published is not None:
        made_for = f"{published.method} for {', '.join(published.targets)}"
        name = ":" if published.model == spec.model else f" as {published.model},"
        known = f"is published{name} {made_for}, but its config.json is not available"
    elif context.drafter is not None:
        known = f"has the architecture {', '.join(context.drafter.architectures)}, but its config.json is not available"
    waiting, weights = (
        context.rules.count_waiting(missing, method=spec.method, drafts=True) for missing in ("drafter", "weights")
    )
    yield from context.rules.ruling("drafter-not-here", model=spec.model, known=known, waiting=waiting, weights=weights)
    stages = context.flags.get("pipeline_parallel_size", 1)
    if isinstance(stages, int) and stages > 1:
        yield from context.rules.ruling("drafter-stages-unknown", model=spec.model, stages=stages)
    if published is not None:
        yield from _find_other_use(context, published)
        if published.architecture and published.architecture not in context.release.table("architectures"):
            lacked = context.rules.ruling("drafter-class-unknown", names=published.architecture, where="model")
            # A patched server may have the class, and the checkpoint may have changed.
            yield from (replace(each, severity=Severity.WARNING, effect=Effect.UNKNOWN) for each in lacked)
    return spec


def _find_other_use(context: Context, published: PublishedDrafter) -> Iterator[Ruling]:
    """Yield where a published drafter is used for what it was not made for."""
    method, target = context.keys.get("method"), context.setup.target
    if isinstance(method, str) and method != published.method:
        yield from context.rules.ruling(
            "drafter-of-other-method",
            model=published.model,
            other=published.method,
            method=method,
            source=published.source,
        )
    known = {name.lower() for name in find_names(target)}
    if known and known.isdisjoint(map(str.lower, published.targets)):
        yield from context.rules.ruling(
            "drafter-of-other-target",
            model=published.model,
            targets=published.targets,
            target=target,
            source=published.source,
        )


def _find_unreadable(context: Context, spec: Spec) -> Iterator[Ruling]:
    places = (spec.model, str(Path(spec.model or "")), str(Path(spec.model or "", "config.json")))
    if not spec.model or find_placeholder(spec.model) is not None:
        yield from context.rules.ruling("drafter-config-unreadable", model=spec.model)
    elif spec.model in context.release.table("methods") and not Path(spec.model).exists():
        yield from context.rules.ruling("method-named-as-model", model=spec.model)
    elif _CLASS_PATH.fullmatch(spec.model) and context.rules.holds("class-path-without-custom-class"):
        yield from context.rules.ruling("class-path-without-custom-class", model=spec.model)
    elif fault := next((fault for fault in context.faults if fault.where in places), None):
        yield from context.rules.ruling("drafter-config-unreadable", message=fault.message, fix=fault.fix)
    else:
        yield from find_other_name(context.rules, spec.model, None, where="model")


def _settle_tokens(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in or check the number of tokens against what the drafter was made for."""
    if spec.draft is None or not spec.known(_TOKENS) or context.rules.applies("dspark-tokens-by-block", spec.method):
        return spec
    if spec.draft is not None and spec.draft.config.model_type == "inkling_mtp" and spec.tokens not in (None, 1):
        yield from context.rules.ruling("inkling-one-token", tokens=spec.tokens)
    steps = spec.draft.config.get("n_predict")
    if not isinstance(steps, int) or steps < 0:
        return spec
    if spec.tokens is None and steps:
        yield from context.rules.ruling("tokens-from-drafter", steps=steps)
        return replace(spec, tokens=steps)
    if isinstance(spec.tokens, (int, float)):
        yield from _find_misfit(context, spec.tokens, steps)
    return spec


def _find_misfit(context: Context, tokens: float, steps: int) -> Iterator[Ruling]:
    if not steps and tokens > 0:
        yield from context.rules.ruling("drafter-predicts-nothing")
    elif steps and tokens > steps and tokens % steps:
        yield from context.rules.ruling(
            "tokens-not-divisible", tokens=tokens, n_predict=steps, fewer=steps * (tokens // steps)
        )


def _require_tokens(context: Context, spec: Spec) -> Step[Spec]:
    """Judge a missing or fractional number as old releases do, and fill in their token tree."""
    if not spec.known(_TOKENS):
        return spec
    if (tree := spec.get(_TREE)) is not None:
        yield from _find_malformed_tree(context, tree)
        return spec
    if spec.tokens is None:
        yield from context.rules.ruling("tokens-missing-type-error")
        return spec.undecided(_TOKENS) if context.rules.holds("tokens-missing-type-error") else spec
    if isinstance(spec.tokens, float):
        yield from context.rules.ruling("tokens-not-whole", tokens=spec.tokens)
        return spec.undecided(_TOKENS) if context.rules.holds("tokens-not-whole") else spec
    if context.rules.holds("token-tree-malformed") and isinstance(spec.tokens, int) and spec.tokens <= _LONGEST_TREE:
        chain = str([(0,) * length for length in range(1, spec.tokens + 1)])
        return replace(spec, filled={**spec.filled, _TREE: chain})
    return spec


def _find_malformed_tree(context: Context, tree: str) -> Iterator[Ruling]:
    try:
        choices = ast.literal_eval(tree)
        sorted(choices, key=lambda path: (len(path), path))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        yield from context.rules.ruling("token-tree-malformed")


def _find_other_stages(context: Context, spec: Spec) -> Iterator[Ruling]:
    """Yield that a checkpoint has no modules of the method's kind: DeepSeek stores DSpark's where MTP's would be."""
    config = None if spec.draft is None else spec.draft.config
    if config is None or not {*_DSPARK_STAGES, "DeepSeekV4MTPModel"} & set(config.architectures):
        return
    has_stages = config.get("dspark_target_layer_ids") is not None
    code = "mtp-over-dspark-stages" if has_stages else "dspark-stages-missing"
    yield from context.rules.ruling(code, method=spec.method, model=spec.model)


def _resolve_dspark(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in and check what only DSpark drafters have."""
    top_k = spec.get(TOP_K_KEY)
    if not spec.reads(TOP_K_KEY):
        if top_k is not None and spec.method is not None:
            yield from context.rules.ruling("dspark-only-key")
        return spec
    if spec.draft is None:
        return spec
    config = spec.draft.config
    block = _first(config, "block_size", "dspark_block_size")
    if spec.tokens is None and isinstance(block, int) and context.rules.holds("dspark-tokens-by-block"):
        spec = replace(spec, tokens=block)
        yield from context.rules.ruling("dspark-tokens-by-block", block=block)
    yield from _find_block_faults(context, spec, config)
    yield from _find_top_k_faults(context, config, top_k if top_k is not None else config.get(TOP_K_KEY))
    for fault in islice(_find_omni_faults(spec, config), 1):
        yield from context.rules.ruling("dspark-omni-contract", fault=fault)
    return spec


def _first(config: HfConfig, *names: str) -> Any:
    return next((value for name in names if (value := config.get(name)) is not None), None)


def _find_block_faults(context: Context, spec: Spec, config: HfConfig) -> Iterator[Ruling]:
    block = config.get("dspark_block_size")
    if isinstance(block, int) and isinstance(spec.tokens, int) and spec.tokens < block:
        yield from context.rules.ruling("dspark-block-too-short", tokens=spec.tokens, block=block)
    contexts = context.flags.get("decode_context_parallel_size", 1)
    if "K3DSparkModel" in config.architectures and isinstance(contexts, int) and contexts > 1:
        yield from context.rules.ruling("dspark-k3-context-parallel", contexts=contexts)


def _find_top_k_faults(context: Context, config: HfConfig, top_k: Any) -> Iterator[Ruling]:
    vocabulary = config.get("draft_vocab_size") or config.get("vocab_size")
    if not isinstance(top_k, int) or not isinstance(vocabulary, int):
        return
    if not 1 <= top_k <= vocabulary:
        yield from context.rules.ruling("dspark-topk-range", top_k=top_k, vocabulary=vocabulary)
    elif not set(_TOP_K_CLASSES) & set(config.architectures):
        yield from context.rules.ruling("dspark-topk-class")


def _find_omni_faults(spec: Spec, config: HfConfig) -> Iterator[str]:
    """Yield what breaks the contract between a Qwen3-Omni target and its drafter, in vLLM's order."""
    target = spec.target
    if target is None or not (
        target.config.model_type == "qwen3_omni_moe" or set(_OMNI_TARGETS) & set(target.config.architectures)
    ):
        return
    if _OMNI not in config.architectures:
        yield f"is not a {_OMNI}, the only DSpark drafter for Qwen3-Omni."
    block = _first(config, "block_size", "dspark_block_size")
    if not isinstance(block, int) or spec.tokens != block:
        yield f"has a block size of {block}; num_speculative_tokens must equal it, and is {spec.tokens}."
    text = target.config.text
    if config.get("target_hidden_size") != text.get("hidden_size"):
        yield f"has target_hidden_size {config.get('target_hidden_size')}, and the target {text.get('hidden_size')}."
    for name in _ATTENTION:
        if config.get(name) != text.get(name):
            yield f"has {name} {config.get(name)}, and the target's text model {text.get(name)}."
    layers = _first(config, "dspark_target_layer_ids", "target_layer_ids")
    if not isinstance(layers, list) or not layers or layers != sorted(set(layers)):
        yield "needs target_layer_ids, a rising list of layer numbers."
    if config.get("use_aux_hidden_state") is not True:
        yield "needs use_aux_hidden_state true."
    if not isinstance(config.get("markov_rank"), int) or config.get("markov_head_type") != "vanilla":
        yield "needs a markov_rank above 0 and markov_head_type 'vanilla'."
    if config.get("sample_from_anchor", True) is not True or config.get("dspark_bonus_anchor", False) is not False:
        yield "needs sample_from_anchor true and dspark_bonus_anchor false."


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
            yield from context.rules.ruling("mlp-speculator-on-one-gpu")
        return replace(spec, draft_tp=1)
    if given in (1, target):
        return replace(spec, draft_tp=given)
    yield from context.rules.ruling("draft-tensor-parallel", given=given, tensor_parallel_size=target)
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
                "draft-longer-than-model", asked=asked, whose=whose, limit=limit, most=min(draft, target)
            )
            return spec
    return replace(spec, draft_len=asked)
