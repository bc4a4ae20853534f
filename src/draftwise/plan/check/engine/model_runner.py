"""Chooses the model runner (V1 or V2, with the gaps of each) and asynchronous scheduling as the release does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from draftwise.checkpoints.config_json import count_experts
from draftwise.core import Ruling
from draftwise.knowledge.rules import get_rule
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.cli.condition_values import UNKNOWN
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.stages import SPEC, Context, Step

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_ASYNC_FLAG = "--async-scheduling"
_ASYNC = "async_scheduling"
"""Table of methods that a release combines with it: by `default`, and when it is asked for (`explicit`)."""
_RUNNER_V2 = "runner_v2"
"""Table of what Model Runner V2 drafts with, and of the targets that run on it by default."""
Lack = Callable[[Context, Resolved | None], bool]
"""Whether a setup requests a feature; without speculation there is no `Resolved`."""
_CANDIDATE_HEADS = frozenset({"DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel"})
_XPRESS = frozenset({"Qwen3XPressModel", "DFlashQwen3XPressModel"})
POOLING = frozenset({"embedding", "sequence_classification", "token_classification", "reward", "late_interaction"})
"""Groups of vLLM's registry whose classes generate nothing."""
_GENERATING = ("ForCausalLM", "ForConditionalGeneration")
"""Endings of classes that generate, too: with them, vLLM pools only if a flag says so."""
_POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")
_OFTEN_POOLED = re.compile(r"embed|rerank|reward|(?:^|/)(?:e5|bge|gte)-", re.IGNORECASE)
_RAW = ("raw_logits", "processed_logits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The model runner of a server, and the reason."""

    name: Literal["V1", "V2"] | None
    """None if it depends on an unknown target."""
    reason: str
    lacks: tuple[str, ...] = ()
    """Rules that name what prevents V2, or what a forced V2 lacks."""
    forced: str = ""
    """Why V2 is forced despite its gaps, as a sentence; empty if V1 is possible."""


def settle_runner(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config with runner and scheduling filled in, and yield how the V1 engine treats them."""
    chosen = choose_runner(context, resolved)
    resolved = replace(resolved, runner=chosen.name)
    resolved = replace(resolved, async_scheduling=schedules_async(context, resolved))
    if not context.runs_on_v0:
        yield from find_runner(context, resolved, chosen)
    return resolved


def find_runner_alone(context: Context) -> Iterator[Ruling]:
    """Yield what the choice of the runner and its scheduling reject without speculation."""
    yield from _find_triton(context, choose_runner(context, None))
    runner = "V1" if _is_surely_v1(context) else None
    if _asks_for_async(context) and context.stages > 1 and _rejects_pipeline(context, runner):
        yield from _find_async_rejected(context, "pipeline parallelism")


def choose_runner(context: Context, resolved: Resolved | None) -> Runner:
    """Return the model runner of a server, by the rules of its release."""
    forced = _forces_v2(context, resolved)
    if not context.rules.holds("v2-exists"):
        return Runner(name="V1", reason="This release has only V1.", forced=forced)
    lacks = _find_met(context, resolved, _V2_LACKS)
    if forced:
        if context.platform == "cpu" and context.rules.holds("cpu-ignores-v2"):
            reason = "On a CPU, this release has only V1."
            return Runner(name="V1", reason=reason, lacks=lacks, forced=forced)
        return Runner(name="V2", reason=forced, lacks=lacks, forced=forced)
    if _read_variable(context) is False:
        return Runner(name="V1", reason=f"{_VARIABLE} turns V2 off.")
    if context.platform == "cpu":
        return Runner(name="V1", reason="Model Runner V2 needs Triton, which a CPU server does not have.")
    return _choose_default(context, resolved, lacks)


def _is_surely_v1(context: Context) -> bool:
    if not context.rules.holds("v2-exists"):
        return True
    return not _forces_v2(context, None) and (context.platform == "cpu" or _read_variable(context) is False)


def _forces_v2(context: Context, resolved: Resolved | None) -> str:
    if context.rules.holds("v2-forced-by-watermark") and context.flags.get("watermark_config"):
        return "Only V2 supports watermarking."
    variable = _read_variable(context)
    if variable:
        return f"{_VARIABLE} turns V2 on."
    return "Only V2 supports this drafter." if variable is None and _find_met(context, resolved, _V2_FORCED) else ""


def _read_variable(context: Context) -> bool | None:
    """Return what the environment asks for. None where it says nothing, or nothing that vLLM can read."""
    given = context.env.get(_VARIABLE, "").strip().lower()
    return {"1": True, "true": True, "0": False, "false": False}.get(given)


def _choose_default(context: Context, resolved: Resolved | None, lacks: tuple[str, ...]) -> Runner:
    takes = _takes_v2(context)
    if takes is None and not lacks:
        return Runner(name=None, reason="This release chooses by the target's architecture, which is unknown.")
    if takes is False:
        return Runner(name="V1", reason="This release uses V2 for such a target only on request.")
    if lacks:
        return Runner(name="V1", reason=_describe_lacks(lacks, resolved), lacks=lacks)
    return Runner(name="V2", reason="V2 is this release's default for such a target.")


def _takes_v2(context: Context) -> bool | None:
    """Say whether the release takes V2 for the target when nothing speaks against it."""
    facts = context.release.table(_RUNNER_V2)
    if facts["default"] != "by architecture":
        return bool(facts["default"] == "always")
    if find_kind(context) == "pooling":
        return False
    if context.target is None or not context.target.architectures or context.target.is_partial:
        return None
    kinds = facts["default_models"]
    listed = bool(set(facts["default_architectures"]).intersection(context.target.architectures))
    if any(_is_kind(context, kind, listed and bool(kinds["listed_hybrid"])) for kind in kinds["not"]):
        return False
    rule = kinds["moe" if count_experts(context.target.config) else "dense"]
    return rule == "all" or (rule == "listed" and listed)


def _is_kind(context: Context, kind: str, hybrid_counts: bool) -> bool:
    """Say whether the target is of a kind that a release leaves to V1: `quantized`, `hybrid` or `attention_free`.

    Only a checkpoint is `quantized`: one that is quantized while it loads, by `--quantization`, is not.
    """
    if kind == "quantized":
        return context.target is not None and context.target.config.get("quantization_config") is not None
    if kind == "hybrid":
        return has_interface(context, "IsHybrid") is True and not hybrid_counts
    return has_interface(context, "IsAttentionFree") is True


def find_runner(context: Context, resolved: Resolved, chosen: Runner) -> Iterator[Ruling]:
    """Yield what the choice of runner and scheduling rejects or changes."""
    yield from _find_triton(context, chosen)
    if chosen.lacks and chosen.forced:
        fix = f"Unset {_VARIABLE}, or remove the feature." if _VARIABLE in context.env else "Remove the feature."
        yield from context.rules.ruling(
            "runner-v2-rejected", reason=chosen.reason, lacks=_describe_lacks(chosen.lacks, resolved), fix=fix
        )
        if chosen.name == "V2":
            yield from context.rules.ruling(
                "runner-v2-fails", reason=chosen.reason, lacks=_describe_lacks(chosen.lacks, resolved), fix=fix
            )
    elif chosen.name == "V1":
        yield from _find_v1_lacks(context, resolved, chosen)
    asked = _asks_for_async(context)
    if asked:
        if obstacle := _obstacle_to_async(context, resolved, "explicit", resolved.runner):
            yield from _find_async_rejected(context, obstacle)
    elif asked is None and _is_async_default(context) and context.platform != "cpu" and find_kind(context) != "pooling":
        yield from _find_async_switched_off(context, resolved)


def _find_triton(context: Context, chosen: Runner) -> Iterator[Ruling]:
    if context.platform != "cpu" or not chosen.forced:
        return
    asked = _read_variable(context)
    for code in ("v2-needs-triton", "v2-without-triton-fails"):
        yield from context.rules.ruling(
            code, where=_VARIABLE if asked else SPEC, fix=f"Unset {_VARIABLE}." if asked else "Serve it on a GPU."
        )


def _find_v1_lacks(context: Context, resolved: Resolved, chosen: Runner) -> Iterator[Ruling]:
    missing = _find_met(context, resolved, _V1_LACKS)
    for code in missing:
        yield from context.rules.ruling(
            code,
            message=f"{get_rule(code).title}, and V1 serves this setup. {chosen.reason}",
            where=SPEC,
            fix="Serve it on a GPU."
            if context.platform == "cpu"
            else ("Remove the option that keeps Model Runner V2 from serving it."),
        )
    if not missing and chosen.lacks:
        yield from context.rules.ruling("runner-falls-back", reason=chosen.reason)


def _describe_lacks(codes: tuple[str, ...], resolved: Resolved | None) -> str:
    said = " ".join(f"{get_rule(code).title}." for code in codes)
    return said if resolved is None else said.replace("this method", resolved.method)


def find_kind(context: Context) -> Any:
    """Return whether the server generates or pools; UNKNOWN if neither its flags nor the target's class tell."""
    runner, convert = context.flags.get("runner") or "auto", context.flags.get("convert") or "auto"
    if context.flags.get("task") in _POOLING_TASKS:  # of releases before --runner
        return "pooling"
    if runner != "auto" or convert not in ("auto", "none"):
        return runner if runner != "auto" else "pooling"
    names = () if context.target is None else context.target.architectures
    row = context.release.table("architectures").get(names[0]) if names else None
    if row is not None and row["group"] in POOLING and not row["class"].endswith(_GENERATING):
        return "pooling"
    # vLLM asks for files of Sentence Transformers before it asks the class.
    return UNKNOWN if row is None or _OFTEN_POOLED.search(context.setup.target) else "generate"


def schedules_async(context: Context, resolved: Resolved) -> bool | None:
    """Return whether the server schedules asynchronously; None if that depends on something unknown."""
    asked = False if context.platform == "cpu" else _asks_for_async(context)
    if asked is not None:
        return asked
    kind = find_kind(context) if context.rules.holds("pooling-schedules-in-turn") else "generate"
    if (
        kind == "pooling"
        or not _is_async_default(context)
        or _obstacle_to_async(context, resolved, "default", resolved.runner)
    ):
        return False
    if resolved.runner is None and _depends_on_runner(context):
        return None if _obstacle_to_async(context, resolved, "default", "V1") else True
    is_open = kind is UNKNOWN and context.target is not None
    return None if is_open or context.given.get("distributed_executor_backend") not in (None, "mp", "uni") else True


def _find_async_rejected(context: Context, obstacle: str) -> Iterator[Ruling]:
    yield from context.rules.ruling("async-rejected", obstacle=obstacle)


def _asks_for_async(context: Context) -> bool | None:
    given = context.given.get("async_scheduling")
    return given if isinstance(given, bool) else None


def _is_async_default(context: Context) -> bool:
    return bool(context.release.table(_ASYNC)["default"])


def _depends_on_runner(context: Context) -> bool:
    return bool(context.release.table(_ASYNC)["runner"] == "V1")


def _find_async_switched_off(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if obstacle := _obstacle_to_async(context, resolved, "default", resolved.runner):
        yield from context.rules.ruling(
            "async-switched-off", obstacle=obstacle, fix=_advise_on_async(context, resolved)
        )


def _advise_on_async(context: Context, resolved: Resolved) -> str:
    explicit = context.release.table(_ASYNC)["explicit"]
    if resolved.method in explicit:
        return (
            f"Pass {_ASYNC_FLAG}: vLLM accepts it with {resolved.method}. Measure it first, because it gained "
            "nothing on an H200."
        )
    if "ngram_gpu" in explicit and "prompt_lookup_max" in resolved.facts.keys:
        return "ngram_gpu keeps it on, but was slower than ngram up to batch 32 on an H200. Measure both."
    return ""


def _obstacle_to_async(context: Context, resolved: Resolved, column: str, runner: str | None) -> str:
    """Return what keeps asynchronous scheduling from being used, as words. Empty where nothing does."""
    if _depends_on_runner(context) and runner != "V1":
        return ""
    if resolved.method not in context.release.table(_ASYNC)[column]:
        return f"the method {resolved.method}"
    if context.keys.get("disable_padded_drafter_batch"):
        return "disable_padded_drafter_batch"
    if context.stages > 1 and _rejects_pipeline(context, runner):
        return "pipeline parallelism on Model Runner V1" if runner == "V1" else "pipeline parallelism"
    return ""


def _rejects_pipeline(context: Context, runner: str | None) -> bool:
    if context.rules.holds("async-rejects-pipeline"):
        return True
    # A CPU server turns asynchronous scheduling off before its runner is checked, not before the flag is.
    checked = context.platform != "cpu" or _depends_on_runner(context)
    return runner == "V1" and checked and context.rules.holds("async-rejects-pipeline-on-v1")


def _flag(name: str) -> Lack:
    return lambda context, _: name in context.on


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
    return resolved is not None and resolved.method not in context.release.table(_RUNNER_V2)["methods"]


def _drafts_in_parallel_by_choice(_: Context, resolved: Resolved | None) -> bool:
    return resolved is not None and resolved.parallel_drafting and resolved.facts.parallel != "always"


def _mixes_attention(context: Context, _: Resolved | None) -> bool:
    kinds = context.draft_config.get("layer_types")
    return isinstance(kinds, list) and 0 < kinds.count("sliding_attention") < len(kinds)


_V2_LACKS: Mapping[str, Lack] = {
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


_V1_LACKS: Mapping[str, Lack] = {
    "v1-lacks-dspark": _always,
    "v1-lacks-adaptive-verification": _key("enable_adaptive_verification"),
    "v1-lacks-lm-head-quantization": _key_given("draft_lm_head_quantization"),
    "v1-lacks-mixed-dflash": _mixes_attention,
    "v1-lacks-candidate-heads": _class(_CANDIDATE_HEADS),
    "v1-lacks-xpress": _class(_XPRESS),
}


_V2_FORCED: Mapping[str, Lack] = {
    "v2-forced-by-dspark": _always,
    "v2-forced-by-mixed-dflash": _mixes_attention,
    "v2-forced-by-dflash2": _class(_CANDIDATE_HEADS),
}


def _find_met(context: Context, resolved: Resolved | None, lacks: Mapping[str, Lack]) -> tuple[str, ...]:
    method = None if resolved is None else resolved.method
    return tuple(
        code for code, asks in lacks.items() if context.rules.applies(code, method) and asks(context, resolved)
    )
