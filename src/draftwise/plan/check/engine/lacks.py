"""What each model runner lacks, and which drafters force V2: one rule each, and what a setup asks for that meets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwise.plan.check.context import Context
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.report import Resolved

__all__ = ["RUNNER_V2", "V1_LACKS", "V2_FORCED", "V2_LACKS", "find_met"]

RUNNER_V2 = "runner_v2"
"""Table of what Model Runner V2 drafts with, and of the targets that run on it by default."""

Lack = Callable[[Context, Resolved | None], bool]
"""Whether a setup asks for it; without speculation there is no `Resolved`."""

_CANDIDATE_HEADS = frozenset({"DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel"})
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
_RAW = ("raw_logits", "processed_logits")


def _flag(name: str) -> Lack:
    return lambda context, _: context.is_on(name)


def _key(name: str) -> Lack:
    return lambda context, _: bool(context.keys.get(name))


def _key_given(name: str) -> Lack:
    return lambda context, _: context.keys.get(name) is not None


def _class(names: frozenset[str]) -> Lack:
    return lambda context, resolved: bool(names.intersection(_draft_architectures(context, resolved)))


def _always(_: Context, __: Resolved | None) -> bool:
    return True


def _draft_architectures(context: Context, resolved: Resolved | None) -> tuple[str, ...]:
    if resolved is not None and resolved.draft_architectures is not None:
        return resolved.draft_architectures
    return () if context.drafter is None else context.drafter.architectures


def _lacks_method(context: Context, resolved: Resolved | None) -> bool:
    return resolved is not None and resolved.method not in context.release.table(RUNNER_V2)["methods"]


def _drafts_in_parallel_by_choice(_: Context, resolved: Resolved | None) -> bool:
    return resolved is not None and resolved.parallel_drafting and resolved.facts.parallel != "always"


def _mixes_attention(context: Context, _: Resolved | None) -> bool:
    """Say whether the drafter has sliding-window and full-attention layers."""
    kinds = context.draft_config.get("layer_types")
    return isinstance(kinds, list) and 0 < kinds.count("sliding_attention") < len(kinds)


V2_LACKS: Mapping[str, Lack] = {
    "v2-lacks-method": _lacks_method,
    "v2-lacks-parallel-drafting": _drafts_in_parallel_by_choice,
    "v2-lacks-heterogeneous-vocab": _key("use_heterogeneous_vocab"),
    "v2-lacks-eagle3-pipeline": lambda context, _: context.stages > 1,
    "v2-lacks-dynamic-schedule": _key_given("num_speculative_tokens_per_batch_size"),
    "v2-lacks-logits-processors": _flag("logits_processors"),
    "v2-lacks-prompt-embeds": _flag("enable_prompt_embeds"),
    "v2-lacks-fast-prefill": _flag("kv_sharing_fast_prefill"),
    "v2-lacks-routed-experts": _flag("enable_return_routed_experts"),
    "v2-lacks-encoder-transfer": _flag("ec_transfer_config"),
    "v2-lacks-dual-batch-overlap": _flag("enable_dbo"),
    "v2-lacks-elastic-experts": _flag("enable_elastic_ep"),
    "v2-lacks-raw-logits": lambda context, _: str(context.flags.get("logprobs_mode")) in _RAW,
    "v2-lacks-hybrid": lambda context, _: has_interface(context, "HasInnerState") is True,
}
"""Rule -> whether a setup asks for what Model Runner V2 lacks while that rule holds."""

V1_LACKS: Mapping[str, Lack] = {
    "v1-lacks-dspark": _always,
    "v1-lacks-adaptive-verification": _key("enable_adaptive_verification"),
    "v1-lacks-lm-head-quantization": _key_given("draft_lm_head_quantization"),
    "v1-lacks-mixed-dflash": _mixes_attention,
    "v1-lacks-candidate-heads": _class(_CANDIDATE_HEADS),
    "v1-lacks-xpress": _class(_XPRESS),
}

V2_FORCED: Mapping[str, Lack] = {
    "v2-forced-by-dspark": _always,
    "v2-forced-by-mixed-dflash": _mixes_attention,
    "v2-forced-by-dflash2": _class(_CANDIDATE_HEADS),
}


def find_met(context: Context, resolved: Resolved | None, lacks: Mapping[str, Lack]) -> tuple[str, ...]:
    """Return the rules of a table that a setup meets in its release."""
    method = None if resolved is None else resolved.method
    return tuple(
        code for code, asks in lacks.items() if context.rules.applies(code, method) and asks(context, resolved)
    )
