"""Which model runner takes the work: V1, or V2 with its own list of what it can draft with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import SPEC, Draft, get_experts, get_size, has_interface, holds, is_on, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["Runner", "find_runner", "find_triton", "runner", "runs_v1_alone"]

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

_TOPIC = "runner_v2"
"""Table of what Model Runner V2 drafts with, and of the targets that run on it by default."""

_Lack = Callable[[Context, Draft], bool]


def _flag(name: str) -> _Lack:
    return lambda context, _: is_on(context, name)


def _method(*names: str) -> _Lack:
    return lambda _, draft: draft.method in names


def _has_pipeline(context: Context) -> bool:
    return (get_size(context, "pipeline_parallel_size") or 1) > 1


V2_LACKS: Mapping[str, _Lack] = {
    "v2-lacks-method": lambda context, draft: draft.method not in context.release.table(_TOPIC)["methods"],
    "v2-lacks-parallel-drafting": lambda _, draft: draft.parallel and draft.method not in ("dflash", "dspark"),
    "v2-lacks-heterogeneous-vocab": lambda _, draft: bool(draft.spec.get("use_heterogeneous_vocab")),
    "v2-lacks-eagle3-pipeline": lambda context, draft: draft.method == "eagle3" and _has_pipeline(context),
    "v2-lacks-dynamic-schedule": lambda _, draft: draft.spec.get("num_speculative_tokens_per_batch_size") is not None,
    "v2-lacks-logits-processors": _flag("logits_processors"),
    "v2-lacks-prompt-embeds": _flag("enable_prompt_embeds"),
    "v2-lacks-fast-prefill": _flag("kv_sharing_fast_prefill"),
    "v2-lacks-routed-experts": _flag("enable_return_routed_experts"),
    "v2-lacks-encoder-transfer": _flag("ec_transfer_config"),
    "v2-lacks-dual-batch-overlap": _flag("enable_dbo"),
    "v2-lacks-elastic-experts": _flag("enable_elastic_ep"),
    "v2-lacks-raw-logits": lambda context, _: str(context.flag("logprobs_mode")) in ("raw_logits", "processed_logits"),
    "v2-lacks-hybrid": lambda context, _: has_interface(context, "HasInnerState") is True,
}
"""Rule -> whether a setup asks for what Model Runner V2 lacks while that rule holds."""

V1_LACKS: Mapping[str, _Lack] = {
    "v1-lacks-dspark": _method("dspark"),
    "v1-lacks-adaptive-verification": lambda _, draft: bool(draft.spec.get("enable_adaptive_verification")),
    "v1-lacks-lm-head-quantization": lambda _, draft: draft.spec.get("draft_lm_head_quantization") is not None,
    "v1-lacks-mixed-dflash": lambda _, draft: draft.method == "dflash" and draft.mixes_attention,
    "v1-lacks-candidate-heads": lambda _, draft: draft.method == "dflash" and draft.has_candidate_head,
    "v1-lacks-xpress": lambda _, draft: draft.method == "dflash" and draft.is_xpress,
}

V2_FORCED: Mapping[str, _Lack] = {
    "v2-forced-by-dspark": _method("dspark"),
    "v2-forced-by-mixed-dflash": V1_LACKS["v1-lacks-mixed-dflash"],
    "v2-forced-by-dflash2": V1_LACKS["v1-lacks-candidate-heads"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The model runner of a server and why it is that one."""

    name: Literal["V1", "V2"] | None
    """None where it depends on a target that is not known here."""
    reason: str
    lacks: tuple[str, ...] = ()
    """Rules that name what kept V2 from being taken, or what a forced V2 lacks."""


def runner(
    context: Context,
    method: str,
    *,
    parallel_drafting: bool = False,
    draft_architectures: tuple[str, ...] | None = None,
) -> Runner:
    """Return the model runner that a server takes for a method, by the rules of its release.

    Args:
        context: the setup.
        method: as resolved, e.g. `mtp` for every MTP alias.
        parallel_drafting: as resolved: dflash and dspark always draft in parallel.
        draft_architectures: as resolved; read from the drafter's config.json where they are not given.
    """
    if not holds(context, "v2-exists"):
        return Runner(name="V1", reason="This release has no other.")
    draft = Draft.of(context, method, parallel_drafting, draft_architectures)
    lacks = tuple(code for code, asks in V2_LACKS.items() if holds(context, code) and asks(context, draft))
    if insists := _insists(context, draft):
        if context.platform == "cpu" and holds(context, "cpu-ignores-v2"):
            return Runner(name="V1", reason="A CPU server of this release has no other.", lacks=lacks)
        return Runner(name="V2", reason=insists, lacks=lacks)
    if _read_variable(context) is False:
        return Runner(name="V1", reason=f"{VARIABLE} is set.")
    if context.platform == "cpu":
        return Runner(name="V1", reason="Model Runner V2 needs Triton, which a CPU server does not have.")
    return _default(context, draft, lacks)


def runs_v1_alone(context: Context) -> bool:
    """Say whether it is certain that V1 serves a setup without speculation."""
    if not holds(context, "v2-exists"):
        return True
    return not _insists(context, None) and (context.platform == "cpu" or _read_variable(context) is False)


def _insists(context: Context, draft: Draft | None) -> str:
    """Return why V2 is taken whatever it lacks, as a sentence; empty where V1 may be taken."""
    if holds(context, "v2-forced-by-watermark") and context.flag("watermark_config"):
        return "Watermarking runs on V2 only."
    variable = _read_variable(context)
    if variable:
        return f"{VARIABLE} is set."
    return "Only V2 has this drafter." if variable is None and draft is not None and _forces_v2(context, draft) else ""


def _read_variable(context: Context) -> bool | None:
    """Return what the environment asks for; None where it says nothing, or nothing that vLLM can read."""
    given = context.env.get(VARIABLE, "").strip().lower()
    return {"1": True, "true": True, "0": False, "false": False}.get(given)


def _forces_v2(context: Context, draft: Draft) -> bool:
    return any(holds(context, code) and asks(context, draft) for code, asks in V2_FORCED.items())


def _default(context: Context, draft: Draft, lacks: tuple[str, ...]) -> Runner:
    takes = _takes_v2(context)
    if takes is None and not lacks:
        return Runner(name=None, reason="This release chooses by the target's architecture, which is not known here.")
    if takes is False:
        return Runner(name="V1", reason="This release does not take V2 for such a target unless it is told to.")
    if lacks:
        return Runner(name="V1", reason=_describe(lacks, draft.method), lacks=lacks)
    return Runner(name="V2", reason="It is this release's default for such a target.")


def _takes_v2(context: Context) -> bool | None:
    """Say whether the release takes V2 for the target when nothing speaks against it."""
    facts = context.release.table(_TOPIC)
    if facts["default"] != "by architecture":
        return bool(facts["default"] == "always")
    if context.target is None or not context.target.architectures:
        return None
    kinds = facts["default_models"]
    listed = bool(set(facts["default_architectures"]).intersection(context.target.architectures))
    if any(_is_kind(context, kind, listed and bool(kinds["listed_hybrid"])) for kind in kinds["not"]):
        return False
    rule = kinds["moe" if get_experts(context.target) else "dense"]
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


def find_runner(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the choice of the runner rejects or changes."""
    draft = Draft.resolved(context, resolved)
    chosen = runner(
        context, draft.method, parallel_drafting=draft.parallel, draft_architectures=tuple(draft.architectures)
    )
    yield from find_triton(context, draft)
    if chosen.lacks and _insists(context, draft):
        yield from _reject_v2(context, draft, chosen)
    elif chosen.name == "V1":
        yield from _judge_v1(context, draft, chosen)


def find_triton(context: Context, draft: Draft | None) -> Iterator[Ruling]:
    """Yield what becomes of a server without Triton that may not fall back to V1.

    Args:
        context: the setup.
        draft: its drafting side; None without speculation.
    """
    if context.platform != "cpu" or not _insists(context, draft):
        return
    asked = _read_variable(context)
    for code in ("v2-needs-triton", "v2-without-triton-fails"):
        yield from rule_if(
            context, code, True, "this asks for Model Runner V2, which needs Triton, and a CPU server has none.",
            where=VARIABLE if asked else SPEC, fix=f"Unset {VARIABLE}." if asked else "Serve it on a GPU.",
        )  # fmt: skip


def _reject_v2(context: Context, draft: Draft, chosen: Runner) -> Iterator[Ruling]:
    message = f"{chosen.reason} {_describe(chosen.lacks, draft.method)}"
    fix = f"Unset {VARIABLE}, or drop the feature." if VARIABLE in context.env else "Drop the feature."
    yield from rule_if(context, "runner-v2-rejected", True, message, where=VARIABLE, fix=fix)
    yield from rule_if(context, "runner-v2-fails", chosen.name == "V2", message, where=VARIABLE, fix=fix)


def _judge_v1(context: Context, draft: Draft, chosen: Runner) -> Iterator[Ruling]:
    missing = [code for code, asks in V1_LACKS.items() if holds(context, code) and asks(context, draft)]
    for code in missing:
        yield get_rule(code).ruling(
            f"{get_rule(code).title}, and V1 takes the work. {chosen.reason}",
            where=SPEC,
            fix="Serve it on a GPU." if context.platform == "cpu" else "Remove what keeps Model Runner V2 from it.",
        )
    if not missing and chosen.lacks:
        message = f"Model Runner V1 takes the work, not V2. {chosen.reason}"
        yield from rule_if(context, "runner-falls-back", True, message, where=SPEC, becomes="V1")


def _describe(codes: tuple[str, ...], method: str) -> str:
    return " ".join(f"{get_rule(code).title}." for code in codes).replace("this method", method)
