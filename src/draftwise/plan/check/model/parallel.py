"""Whether target and drafter can be split over the GPUs asked for: heads, pipeline stages, experts, decode contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model.architecture import find_architecture, supports
from draftwise.plan.check.model.hf_config import HfConfig, place_of

__all__ = ["find_drafter_parallel", "find_stages", "find_target_parallel"]

_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")


def find_drafter_parallel(context: Context, config: HfConfig, tensor: int) -> Iterator[Ruling]:
    """Yield why the drafter cannot be split over `tensor` GPUs, and the stages that it runs on."""
    stages = context.flag("pipeline_parallel_size", 1)
    experts = context.flag("enable_expert_parallel", False)
    if context.holds("drafter-on-one-stage"):
        stages = 1
        experts = experts and (config.num_experts > 0 or not context.holds("drafter-experts-by-class"))
    elif not context.holds("drafter-inherits-experts"):
        experts = False
    yield from _find_split(context, config, tensor, stages, experts, "drafter")


def find_target_parallel(context: Context, config: HfConfig) -> Iterator[Ruling]:
    """Yield why the target cannot be split as asked."""
    tensor = context.flag("tensor_parallel_size", 1)
    stages = context.flag("pipeline_parallel_size", 1)
    yield from _find_split(context, config, tensor, stages, context.flag("enable_expert_parallel", False), "target")
    yield from _find_decode_contexts(context, config, tensor)


def _find_split(
    context: Context, config: HfConfig, tensor: Any, stages: Any, experts: Any, role: str
) -> Iterator[Ruling]:
    heads = config.num_attention_heads
    if isinstance(tensor, int) and tensor > 0 and heads % tensor:
        key = "draft_tensor_parallel_size" if role == "drafter" else "tensor_parallel_size"
        yield from context.ruling(
            f"{role}-heads-not-divisible",
            f"{key} is {tensor}, which does not divide the {role}'s {heads} attention heads.",
            where=key,
            fix=f"Give a divisor of {heads}.",
        )
    if experts and config.num_experts < 1:
        yield from context.ruling(
            f"{role}-has-no-experts",
            f"enable_expert_parallel is set, and the {role} is not a mixture of experts.",
            where="enable_expert_parallel",
            fix="Remove it.",
        )
    yield from find_stages(context, config, stages, role)


def find_stages(context: Context, config: HfConfig, stages: Any, role: str) -> Iterator[Ruling]:
    """Yield why a model cannot be split into pipeline stages."""
    if not isinstance(stages, int) or stages <= 1:
        return
    has = f"The {role} has the architecture {', '.join(config.architectures)}, which"
    if find_architecture(context, config.architectures, served=True) is None:
        # Only releases that did not look for the class before come here: they do now.
        yield from context.ruling(
            f"{role}-class-unknown",
            f"{has} vLLM {context.release} cannot build.",
            where=place_of(role),
            fix="Use a release that registers it.",
        )
    elif not supports(context, config.architectures, "SupportsPP"):
        yield from context.ruling(
            f"{role}-without-pipeline",
            f"{has} cannot be split into pipeline stages.",
            where=place_of(role),
            fix="Set pipeline_parallel_size to 1.",
        )


def _find_decode_contexts(context: Context, config: HfConfig, tensor: Any) -> Iterator[Ruling]:
    contexts = context.flag("decode_context_parallel_size", 1)
    if not isinstance(contexts, int) or contexts <= 1 or not isinstance(tensor, int) or config.text.get("kv_lora_rank"):
        return
    heads = config.num_attention_heads
    kv_heads = next((value for key in _KV_HEADS if isinstance(value := config.text.get(key), int)), heads)
    if not kv_heads:
        return
    if tensor <= kv_heads or contexts > tensor // kv_heads or (heads // kv_heads) % contexts:
        yield from context.ruling(
            "target-decode-contexts",
            f"decode_context_parallel_size is {contexts}; with {kv_heads} key-value heads it needs "
            f"tensor_parallel_size above {kv_heads}, at most tensor_parallel_size / {kv_heads} contexts, and a "
            f"divisor of {heads // kv_heads} query heads each.",
            where="decode_context_parallel_size",
            fix="Set it to 1.",
        )
