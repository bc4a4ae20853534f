"""Which model runner takes the work: V1, or V2 with its own list of what it can draft with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.engine.lacks import RUNNER_V2, V1_LACKS, V2_FORCED, V2_LACKS, find_met
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.report import Resolved

__all__ = ["Runner", "choose_runner", "find_runner", "find_triton", "is_surely_v1"]

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """The model runner of a server and why it is that one."""

    name: Literal["V1", "V2"] | None
    """None where it depends on a target that is not known here."""
    reason: str
    lacks: tuple[str, ...] = ()
    """Rules that name what kept V2 from being taken, or what a forced V2 lacks."""
    forced: str = ""
    """Why V2 is asked for whatever it lacks, as a sentence; empty where V1 may be taken."""


def choose_runner(context: Context, resolved: Resolved | None) -> Runner:
    """Return the model runner that a server takes, by the rules of its release.

    Args:
        context: the setup.
        resolved: its speculative config, of which method, parallel drafting and the drafter's architectures count;
            None without speculation.
    """
    forced = _forces_v2(context, resolved)
    if not context.rules.holds("v2-exists"):
        return Runner(name="V1", reason="This release has no other.", forced=forced)
    lacks = find_met(context, resolved, V2_LACKS)
    if forced:
        if context.platform == "cpu" and context.rules.holds("cpu-ignores-v2"):
            reason = "A CPU server of this release has no other."
            return Runner(name="V1", reason=reason, lacks=lacks, forced=forced)
        return Runner(name="V2", reason=forced, lacks=lacks, forced=forced)
    if _read_variable(context) is False:
        return Runner(name="V1", reason=f"{VARIABLE} is set.")
    if context.platform == "cpu":
        return Runner(name="V1", reason="Model Runner V2 needs Triton, which a CPU server does not have.")
    return _default(context, resolved, lacks)


def is_surely_v1(context: Context) -> bool:
    """Say whether it is certain that V1 serves a setup without speculation."""
    if not context.rules.holds("v2-exists"):
        return True
    return not _forces_v2(context, None) and (context.platform == "cpu" or _read_variable(context) is False)


def _forces_v2(context: Context, resolved: Resolved | None) -> str:
    if context.rules.holds("v2-forced-by-watermark") and context.flags.get("watermark_config"):
        return "Watermarking runs on V2 only."
    variable = _read_variable(context)
    if variable:
        return f"{VARIABLE} is set."
    return "Only V2 has this drafter." if variable is None and find_met(context, resolved, V2_FORCED) else ""


def _read_variable(context: Context) -> bool | None:
    """Return what the environment asks for; None where it says nothing, or nothing that vLLM can read."""
    given = context.env.get(VARIABLE, "").strip().lower()
    return {"1": True, "true": True, "0": False, "false": False}.get(given)


def _default(context: Context, resolved: Resolved | None, lacks: tuple[str, ...]) -> Runner:
    takes = _takes_v2(context)
    if takes is None and not lacks:
        return Runner(name=None, reason="This release chooses by the target's architecture, which is not known here.")
    if takes is False:
        return Runner(name="V1", reason="This release does not take V2 for such a target unless it is told to.")
    if lacks:
        return Runner(name="V1", reason=_describe(lacks, resolved), lacks=lacks)
    return Runner(name="V2", reason="It is this release's default for such a target.")


def _takes_v2(context: Context) -> bool | None:
    """Say whether the release takes V2 for the target when nothing speaks against it."""
    facts = context.release.table(RUNNER_V2)
    if facts["default"] != "by architecture":
        return bool(facts["default"] == "always")
    if context.target is None or not context.target.architectures:
        return None
    kinds = facts["default_models"]
    listed = bool(set(facts["default_architectures"]).intersection(context.target.architectures))
    if any(_is_kind(context, kind, listed and bool(kinds["listed_hybrid"])) for kind in kinds["not"]):
        return False
    rule = kinds["moe" if context.target.num_experts else "dense"]
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
    """Yield what the choice of the runner rejects or changes."""
    yield from find_triton(context, chosen)
    if chosen.lacks and chosen.forced:
        message = f"{chosen.reason} {_describe(chosen.lacks, resolved)}"
        fix = f"Unset {VARIABLE}, or drop the feature." if VARIABLE in context.env else "Drop the feature."
        yield from context.rules.ruling("runner-v2-rejected", message, where=VARIABLE, fix=fix)
        if chosen.name == "V2":
            yield from context.rules.ruling("runner-v2-fails", message, where=VARIABLE, fix=fix)
    elif chosen.name == "V1":
        yield from _find_v1_lacks(context, resolved, chosen)


def find_triton(context: Context, chosen: Runner) -> Iterator[Ruling]:
    """Yield what becomes of a server without Triton that may not fall back to V1."""
    if context.platform != "cpu" or not chosen.forced:
        return
    asked = _read_variable(context)
    for code in ("v2-needs-triton", "v2-without-triton-fails"):
        yield from context.rules.ruling(
            code,
            "The setup asks for Model Runner V2, which needs Triton, and a CPU server has none.",
            where=VARIABLE if asked else SPEC,
            fix=f"Unset {VARIABLE}." if asked else "Serve it on a GPU.",
        )


def _find_v1_lacks(context: Context, resolved: Resolved, chosen: Runner) -> Iterator[Ruling]:
    missing = find_met(context, resolved, V1_LACKS)
    for code in missing:
        yield from context.rules.ruling(
            code,
            f"{get_rule(code).title}, and V1 takes the work. {chosen.reason}",
            where=SPEC,
            fix="Serve it on a GPU." if context.platform == "cpu" else "Remove what keeps Model Runner V2 from it.",
        )
    if not missing and chosen.lacks:
        message = f"Model Runner V1 takes the work, not V2. {chosen.reason}"
        yield from context.rules.ruling("runner-falls-back", message, where=SPEC, becomes="V1")


def _describe(codes: tuple[str, ...], resolved: Resolved | None) -> str:
    said = " ".join(f"{get_rule(code).title}." for code in codes)
    return said if resolved is None else said.replace("this method", resolved.method)
