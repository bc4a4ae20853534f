"""DSpark drafters: their architectures, block sizes, candidate limits, and the contract of those for Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import HfConfig
from draftwise.plan.check.spec.renaming import with_config
from draftwise.plan.check.spec.spec import Spec
from draftwise.plan.check.steps import Step

__all__ = ["resolve_dspark", "rewrite_dspark"]

_TOP_K_KEY = "dspark_draft_topk"
_TOP_K_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
_OMNI = "Qwen3OmniDSparkModel"
_OMNI_TARGETS = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
_ATTENTION = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def rewrite_dspark(context: Context, spec: Spec) -> Step[Spec]:
    """Give a DSpark drafter the class that vLLM builds it with: its own, else DeepSeek's inside the target."""
    if not spec.reads(_TOP_K_KEY) or spec.draft is None:
        return spec
    config = spec.draft.config
    is_dense = "DSparkDraftModel" in config.architectures and config.model_type == "qwen3"
    if is_dense and context.rules.holds("dspark-qwen3-omni"):
        config = config.changed(architectures=["Qwen3DSparkModel"])
    elif not _standalone(context) & set(config.architectures):
        config = _inside_target(context, spec, config)
    elif "Gemma4DSparkModel" in config.architectures and config.get("n_predict") is None:
        config = config.changed(n_predict=config.get("block_size"))
    else:
        return spec
    return (yield from with_config(context, spec, config))


def _standalone(context: Context) -> set[str]:
    """Return the drafter classes with weights of their own that the release knows."""
    conditions = context.release.table("method_inference")["dspark"]
    named = {each["architecture"] for each in conditions if "architecture" in each and "model_type" not in each}
    return named | ({"K3DSparkModel"} if context.rules.holds("dspark-k3") else set())


def _inside_target(context: Context, spec: Spec, config: HfConfig) -> HfConfig:
    """Return the config of the DSpark stages that a DeepSeek checkpoint ships."""
    target_type = "" if spec.target is None else spec.target.config.model_type
    if target_type == "deepseek_v41" and context.rules.holds("dspark-deepseek-v41"):
        steps = config.get("dspark_block_size") or config.get("n_predict")
        return config.changed(architectures=["DSparkV41DraftModel"], model_type="deepseek_v41", n_predict=steps)
    steps = config.get("n_predict")
    return config.changed(architectures=["DSparkDraftModel"], model_type="deepseek_v4", n_predict=steps)


def resolve_dspark(context: Context, spec: Spec) -> Step[Spec]:
    """Fill in and check what only DSpark drafters have."""
    top_k = spec.get(_TOP_K_KEY)
    if not spec.reads(_TOP_K_KEY):
        if top_k is not None and spec.method is not None:
            message = f"{_TOP_K_KEY} is for DSpark drafters only."
            yield from context.rules.ruling("dspark-only-key", message, where=_TOP_K_KEY, fix="Remove it.")
        return spec
    if spec.draft is None:
        return spec
    config = spec.draft.config
    block = _first(config, "block_size", "dspark_block_size")
    if spec.tokens is None and isinstance(block, int) and context.rules.holds("dspark-tokens-by-block"):
        spec = replace(spec, tokens=block)
        yield from context.rules.ruling(
            "dspark-tokens-by-block",
            f"num_speculative_tokens is not given; the drafter's block size makes it {block}.",
            where="num_speculative_tokens",
            becomes=str(block),
        )
    yield from _find_block_faults(context, spec, config)
    yield from _find_top_k_faults(context, config, top_k if top_k is not None else config.get(_TOP_K_KEY))
    for fault in islice(_find_omni_faults(spec, config), 1):
        fix = "Convert the drafter for this target again."
        yield from context.rules.ruling("dspark-omni-contract", f"The drafter {fault}", where="model", fix=fix)
    return spec


def _first(config: HfConfig, *names: str) -> Any:
    return next((value for name in names if (value := config.get(name)) is not None), None)


def _find_block_faults(context: Context, spec: Spec, config: HfConfig) -> Iterator[Ruling]:
    block = config.get("dspark_block_size")
    if isinstance(block, int) and isinstance(spec.tokens, int) and spec.tokens < block:
        yield from context.rules.ruling(
            "dspark-block-too-short",
            f"num_speculative_tokens is {spec.tokens}, below the drafter's block of {block}.",
            where="num_speculative_tokens",
            fix=f"Give {block}.",
        )
    contexts = context.flags.get("decode_context_parallel_size", 1)
    if "K3DSparkModel" in config.architectures and isinstance(contexts, int) and contexts > 1:
        yield from context.rules.ruling(
            "dspark-k3-context-parallel",
            f"decode_context_parallel_size is {contexts}, and MLA DSpark drafters run with 1 only.",
            where="decode_context_parallel_size",
            fix="Set it to 1.",
        )


def _find_top_k_faults(context: Context, config: HfConfig, top_k: Any) -> Iterator[Ruling]:
    vocabulary = config.get("draft_vocab_size") or config.get("vocab_size")
    if not isinstance(top_k, int) or not isinstance(vocabulary, int):
        return
    if not 1 <= top_k <= vocabulary:
        yield from context.rules.ruling(
            "dspark-topk-range",
            f"{_TOP_K_KEY} is {top_k}, and the draft vocabulary has {vocabulary} tokens.",
            where=_TOP_K_KEY,
            fix=f"Give 1 to {vocabulary}.",
        )
    elif not set(_TOP_K_CLASSES) & set(config.architectures):
        message = f"{_TOP_K_KEY} works with Qwen3 DSpark drafters only."
        yield from context.rules.ruling("dspark-topk-class", message, where=_TOP_K_KEY, fix="Remove it.")


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
