"""DSpark drafters: their architectures, block sizes, candidate limits, and the contract of those for Qwen3-Omni."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from draftwise.plan.check.architecture import find_architecture
from draftwise.plan.check.hf_config import HfConfig
from draftwise.plan.check.work import Work

__all__ = ["judge_dspark", "rewrite_dspark"]

_TOP_K_CLASSES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")
_OMNI = "Qwen3OmniDSparkModel"
_OMNI_TARGETS = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
_ATTENTION = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


def rewrite_dspark(work: Work) -> None:
    """Give a DSpark drafter the class that vLLM builds it with: its own, else DeepSeek's inside the target."""
    if work.method != "dspark" or work.draft is None:
        return
    config = work.draft.config
    dense = "DSparkDraftModel" in config.architectures and config.model_type == "qwen3"
    if dense and work.context.holds("dspark-qwen3-omni"):
        _replace(work, config.changed(architectures=["Qwen3DSparkModel"]))
    elif not _standalone(work) & set(config.architectures):
        newer = work.context.holds("dspark-deepseek-v41") and work.target is not None
        v41 = newer and work.target is not None and work.target.config.model_type == "deepseek_v41"
        name, kind = ("DSparkV41DraftModel", "deepseek_v41") if v41 else ("DSparkDraftModel", "deepseek_v4")
        steps = config.get("dspark_block_size") or config.get("n_predict") if v41 else config.get("n_predict")
        _replace(work, config.changed(architectures=[name], model_type=kind, n_predict=steps))
    elif "Gemma4DSparkModel" in config.architectures and config.get("n_predict") is None:
        _replace(work, config.changed(n_predict=config.get("block_size")))


def _standalone(work: Work) -> set[str]:
    """Return the drafter classes with weights of their own that the release knows."""
    conditions = work.context.release.table("method_inference")["dspark"]
    named = {each["architecture"] for each in conditions if "architecture" in each and "model_type" not in each}
    return named | ({"K3DSparkModel"} if work.context.holds("dspark-k3") else set())


def _replace(work: Work, config: HfConfig) -> None:
    assert work.draft is not None
    work.draft = replace(work.draft, config=config)
    names = config.architectures
    if find_architecture(work.context, names) is None:
        work.add("drafter-class-missing", f"is run as {work.method}, which needs the class {names[0]}; vLLM "
                 f"{work.context.release} has none of that name.", where="model",
                 fix="Use a drafter that this release registers.", opens=("draft",))  # fmt: skip


def judge_dspark(work: Work) -> None:
    """Fill in and check what only DSpark drafters have."""
    top_k = work.get("dspark_draft_topk")
    if top_k is not None and work.method not in (None, "dspark"):
        work.add("dspark-only-key", "is for DSpark drafters only.", where="dspark_draft_topk", fix="Remove it.")
    if work.method != "dspark" or work.draft is None:
        return
    config = work.draft.config
    block = _first(config, "block_size", "dspark_block_size")
    if work.tokens is None and isinstance(block, int) and work.context.holds("dspark-tokens-by-block"):
        work.tokens = block
        work.add("dspark-tokens-by-block", f"is not given; the drafter's block size makes it {block}.",
                 where="num_speculative_tokens", becomes=str(block))  # fmt: skip
    _judge_block(work, config)
    _judge_top_k(work, config, top_k if top_k is not None else config.get("dspark_draft_topk"))
    if work.context.holds("dspark-qwen3-omni"):
        for fault in _find_omni_faults(work, config):
            work.add("dspark-omni-contract", fault, where="model", fix="Convert the drafter for this target again.")
            return


def _first(config: HfConfig, *names: str) -> Any:
    return next((value for name in names if (value := config.get(name)) is not None), None)


def _judge_block(work: Work, config: HfConfig) -> None:
    block = config.get("dspark_block_size")
    if isinstance(block, int) and isinstance(work.tokens, int) and work.tokens < block:
        work.add("dspark-block-too-short", f"is {work.tokens}, below the drafter's block of {block}.",
                 where="num_speculative_tokens", fix=f"Give {block}.")  # fmt: skip
    contexts = work.context.flag("decode_context_parallel_size", 1)
    if "K3DSparkModel" in config.architectures and isinstance(contexts, int) and contexts > 1:
        work.add("dspark-k3-context-parallel", "is above 1, which MLA DSpark drafters cannot do.",
                 where="decode_context_parallel_size", fix="Set it to 1.")  # fmt: skip


def _judge_top_k(work: Work, config: HfConfig, top_k: Any) -> None:
    vocabulary = config.get("draft_vocab_size") or config.get("vocab_size")
    if not isinstance(top_k, int) or not isinstance(vocabulary, int):
        return
    if not 1 <= top_k <= vocabulary:
        work.add("dspark-topk-range", f"is {top_k}, and the draft vocabulary has {vocabulary} tokens.",
                 where="dspark_draft_topk", fix=f"Give 1 to {vocabulary}.")  # fmt: skip
    elif not set(_TOP_K_CLASSES) & set(config.architectures):
        work.add("dspark-topk-class", "works with Qwen3 DSpark drafters only.", where="dspark_draft_topk",
                 fix="Remove it.")  # fmt: skip


def _find_omni_faults(work: Work, config: HfConfig) -> Iterator[str]:
    """Yield what breaks the contract between a Qwen3-Omni target and its drafter, in vLLM's order."""
    target = work.target
    if target is None or not (
        target.config.model_type == "qwen3_omni_moe" or set(_OMNI_TARGETS) & set(target.config.architectures)
    ):
        return
    if _OMNI not in config.architectures:
        yield f"is no {_OMNI}, the only DSpark drafter for Qwen3-Omni."
    block = _first(config, "block_size", "dspark_block_size")
    if not isinstance(block, int) or work.tokens != block:
        yield f"has a block size of {block}; num_speculative_tokens must equal it, and is {work.tokens}."
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
