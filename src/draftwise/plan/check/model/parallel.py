"""Whether target and drafter can be split over the GPUs asked for: heads, pipeline stages, experts, decode contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.architecture import find_architecture, supports
from draftwise.plan.check.context import Context
from draftwise.plan.check.hf_config import HfConfig
from draftwise.plan.check.work import Work

__all__ = ["find_target_parallel", "judge_parallel"]

_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")


def judge_parallel(work: Work) -> None:
    """Record that the drafter cannot be split as asked."""
    if work.draft is None or work.draft_tp is None or work.method == "extract_hidden_states" or not work.known("draft"):
        return
    context, config = work.context, work.draft.config
    stages = context.flag("pipeline_parallel_size", 1)
    experts = context.flag("enable_expert_parallel", False)
    if context.holds("drafter-on-one-stage"):
        stages = 1
        experts = experts and (config.num_experts > 0 or not context.holds("drafter-experts-by-class"))
    elif not context.holds("drafter-inherits-experts"):
        experts = False
    work.rulings.extend(_judge(context, config, work.draft_tp, stages, experts, "drafter"))


def find_target_parallel(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield why the target cannot be split as asked."""
    tensor = context.flag("tensor_parallel_size", 1)
    stages = context.flag("pipeline_parallel_size", 1)
    yield from _judge(context, config, tensor, stages, context.flag("enable_expert_parallel", False), "target")
    yield from _judge_contexts(context, config, tensor)


def _judge(context: Context, config: HfConfig, tensor: Any, stages: Any, experts: Any, role: str) -> Iterator[Ruling]:
    heads = config.num_attention_heads
    if isinstance(tensor, int) and tensor > 0 and heads % tensor:
        flag = "draft_tensor_parallel_size" if role == "drafter" else "tensor_parallel_size"
        yield get_rule(f"{role}-heads-not-divisible").ruling(
            f"is {tensor}, which does not divide the {role}'s {heads} attention heads.", where=flag,
            fix=f"Give a divisor of {heads}.",
        )  # fmt: skip
    if experts and config.num_experts < 1:
        yield get_rule(f"{role}-has-no-experts").ruling(
            f"is set, and the {role} is no mixture of experts.", where="enable_expert_parallel", fix="Remove it."
        )
    yield from _judge_stages(context, config, stages, role)


def judge_class(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield why the class that dumps hidden states cannot be split into the target's pipeline stages."""
    yield from _judge_stages(context, config, context.flag("pipeline_parallel_size", 1), "drafter")


def _judge_stages(context: Context, config: HfConfig, stages: Any, role: str) -> Iterator[Ruling]:
    if not isinstance(stages, int) or stages <= 1:
        return
    names = ", ".join(config.architectures)
    built = find_architecture(context, config.architectures, served=True)
    if built is None:
        # Only releases that did not look for the class before come here: they do now.
        yield get_rule(f"{role}-class-unknown").ruling(
            f"has the architecture {names}, which vLLM {context.release} cannot build.",
            where="model" if role == "drafter" else role, fix="Use a release that registers it.",
        )  # fmt: skip
    elif not supports(context, config.architectures, "SupportsPP"):
        yield get_rule(f"{role}-without-pipeline").ruling(
            f"has the architecture {names}, which cannot be split into pipeline stages.",
            where="model" if role == "drafter" else role, fix="Set pipeline_parallel_size to 1.",
        )  # fmt: skip


def _judge_contexts(context: Context, config: HfConfig, tensor: Any) -> Iterator[Ruling]:
    contexts = context.flag("decode_context_parallel_size", 1)
    if not isinstance(contexts, int) or contexts <= 1 or not isinstance(tensor, int) or config.text.get("kv_lora_rank"):
        return
    heads = config.num_attention_heads
    kv_heads = next((value for key in _KV_HEADS if isinstance(value := config.text.get(key), int)), heads)
    if not kv_heads:
        return
    if tensor <= kv_heads or contexts > tensor // kv_heads or (heads // kv_heads) % contexts:
        yield get_rule("target-decode-contexts").ruling(
            f"is {contexts}; with {kv_heads} key-value heads it needs tensor_parallel_size above {kv_heads}, at most "
            f"tensor_parallel_size / {kv_heads} contexts, and a divisor of {heads // kv_heads} query heads each.",
            where="decode_context_parallel_size", fix="Set it to 1.",
        )  # fmt: skip
