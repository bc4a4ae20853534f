"""Asynchronous scheduling under speculation: whether it stays on, what turns it off, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import SPEC, get_size, holds, rule_if
from draftwise.plan.check.later.runner import runs_v1_alone
from draftwise.plan.check.report import Resolved

__all__ = ["async_scheduling", "find_scheduling", "find_scheduling_alone"]

FLAG = "--async-scheduling"

_COST = (
    "The host then prepares each step while the GPU waits: 1.56 ms a step at batch 1 on an H200 with an 8B model "
    "(4.76 ms with, 6.32 without)."
)

_TOPIC = "async_scheduling"
"""Table of methods that a release combines with it: by `default`, and when it is asked for (`explicit`)."""


def async_scheduling(context: Context, resolved: Resolved) -> bool | None:
    """Return whether the server schedules asynchronously; None where that depends on what is not known here."""
    if context.platform == "cpu":
        return False
    asked = _asked(context)
    if asked is not None:
        return asked
    if not _is_default(context):
        return False
    obstacle = _obstacle(context, resolved, default=True)
    if obstacle:
        return False
    if resolved.runner is None and _depends_on_runner(context):
        return None if _obstacle(context, resolved, default=True, runner="V1") else True
    return None if context.given.get("distributed_executor_backend") not in (None, "mp", "uni") else True


def find_scheduling(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what asynchronous scheduling rejects, and why it is turned off."""
    asked = _asked(context)
    if asked:
        yield from _find_conflict(context, resolved)
    elif asked is None and _is_default(context) and context.platform != "cpu":
        yield from _find_switched_off(context, resolved)


def find_scheduling_alone(context: Context) -> Iterator[Ruling]:
    """Yield what asynchronous scheduling rejects without speculation."""
    stages = get_size(context, "pipeline_parallel_size") or 1
    runner = "V1" if runs_v1_alone(context) else None
    yield from rule_if(
        context, "async-rejected", _asked(context) and stages > 1 and _rejects_pipeline(context, runner),
        f"{FLAG} does not go with pipeline parallelism in {context.release}.", where=FLAG, fix=f"Leave {FLAG} out.",
    )  # fmt: skip


def _asked(context: Context) -> bool | None:
    given = context.given.get("async_scheduling")
    return given if isinstance(given, bool) else None


def _is_default(context: Context) -> bool:
    return bool(context.release.table(_TOPIC)["default"])


def _depends_on_runner(context: Context) -> bool:
    return bool(context.release.table(_TOPIC)["runner"] == "V1")


def _find_conflict(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    fix = f"Leave {FLAG} out."
    text = f"{context.release} does not combine {FLAG} with speculative decoding."
    yield from rule_if(context, "async-rejects-speculation", True, text, where=FLAG, fix=fix)
    if obstacle := _obstacle(context, resolved, default=False):
        text = f"{FLAG} does not go with {obstacle} in {context.release}."
        yield from rule_if(context, "async-rejected", True, text, where=FLAG, fix=fix)


def _find_switched_off(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if obstacle := _obstacle(context, resolved, default=True):
        yield get_rule("async-switched-off").ruling(
            f"{context.release} turns asynchronous scheduling off because of {obstacle}. {_COST}",
            where=SPEC,
            fix=_advise(context, resolved),
            becomes="--no-async-scheduling",
        )


def _advise(context: Context, resolved: Resolved) -> str:
    explicit = context.release.table(_TOPIC)["explicit"]
    if resolved.method in explicit:
        return f"Give {FLAG}: it is accepted with {resolved.method}; measure, it gained nothing on an H200."
    if resolved.method == "ngram" and "ngram_gpu" in explicit:
        return "ngram_gpu keeps it on, but was slower than ngram up to batch 32 on an H200: measure both."
    return ""


def _obstacle(context: Context, resolved: Resolved, *, default: bool, runner: str | None = None) -> str:
    """Return what keeps asynchronous scheduling from being used, as words; empty where nothing does."""
    runner = runner or resolved.runner
    if _depends_on_runner(context) and runner != "V1":
        return ""
    if resolved.method not in context.release.table(_TOPIC)["default" if default else "explicit"]:
        return f"method {resolved.method}"
    if context.keys.get("disable_padded_drafter_batch"):
        return "disable_padded_drafter_batch"
    if (get_size(context, "pipeline_parallel_size") or 1) > 1 and _rejects_pipeline(context, runner):
        return "pipeline parallelism on Model Runner V1" if runner == "V1" else "pipeline parallelism"
    return ""


def _rejects_pipeline(context: Context, runner: str | None) -> bool:
    if holds(context, "async-rejects-pipeline"):
        return True
    # A CPU server turns asynchronous scheduling off before its runner is checked, not before the flag is.
    checked = context.platform != "cpu" or _depends_on_runner(context)
    return runner == "V1" and checked and holds(context, "async-rejects-pipeline-on-v1")
