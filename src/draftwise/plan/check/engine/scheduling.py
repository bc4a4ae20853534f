"""Asynchronous scheduling under speculation: whether it stays on, what turns it off, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.engine.runner import is_surely_v1
from draftwise.plan.check.report import Resolved

__all__ = ["find_scheduling", "find_scheduling_alone", "schedules_async"]

FLAG = "--async-scheduling"

_COST = (
    "The host then prepares each step while the GPU waits: 1.56 ms a step at batch 1 on an H200 with an 8B model "
    "(4.76 ms with, 6.32 without)."
)

_TOPIC = "async_scheduling"
"""Table of methods that a release combines with it: by `default`, and when it is asked for (`explicit`)."""


def schedules_async(context: Context, resolved: Resolved) -> bool | None:
    """Return whether the server schedules asynchronously; None where that depends on what is not known here."""
    if context.platform == "cpu":
        return False
    asked = _asked(context)
    if asked is not None:
        return asked
    if not _is_default(context) or _obstacle(context, resolved, "default", resolved.runner):
        return False
    if resolved.runner is None and _depends_on_runner(context):
        return None if _obstacle(context, resolved, "default", "V1") else True
    return None if context.given.get("distributed_executor_backend") not in (None, "mp", "uni") else True


def find_scheduling(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what asynchronous scheduling rejects, and why it is turned off."""
    asked = _asked(context)
    if asked:
        if obstacle := _obstacle(context, resolved, "explicit", resolved.runner):
            yield from _find_rejected(context, obstacle)
    elif asked is None and _is_default(context) and context.platform != "cpu":
        yield from _find_switched_off(context, resolved)


def find_scheduling_alone(context: Context) -> Iterator[Ruling]:
    """Yield what asynchronous scheduling rejects without speculation."""
    runner = "V1" if is_surely_v1(context) else None
    if _asked(context) and context.stages > 1 and _rejects_pipeline(context, runner):
        yield from _find_rejected(context, "pipeline parallelism")


def _find_rejected(context: Context, obstacle: str) -> Iterator[Ruling]:
    message = f"{FLAG} does not go with {obstacle} in vLLM {context.release}."
    yield from context.rules.ruling("async-rejected", message, where=FLAG, fix=f"Leave {FLAG} out.")


def _asked(context: Context) -> bool | None:
    given = context.given.get("async_scheduling")
    return given if isinstance(given, bool) else None


def _is_default(context: Context) -> bool:
    return bool(context.release.table(_TOPIC)["default"])


def _depends_on_runner(context: Context) -> bool:
    return bool(context.release.table(_TOPIC)["runner"] == "V1")


def _find_switched_off(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if obstacle := _obstacle(context, resolved, "default", resolved.runner):
        yield from context.rules.ruling(
            "async-switched-off",
            f"vLLM {context.release} turns asynchronous scheduling off because of {obstacle}. {_COST}",
            where=SPEC,
            fix=_advise(context, resolved),
            becomes="--no-async-scheduling",
        )


def _advise(context: Context, resolved: Resolved) -> str:
    explicit = context.release.table(_TOPIC)["explicit"]
    if resolved.method in explicit:
        return f"Give {FLAG}: it is accepted with {resolved.method}; measure, it gained nothing on an H200."
    if "ngram_gpu" in explicit and "prompt_lookup_max" in resolved.facts.keys:
        return "ngram_gpu keeps it on, but was slower than ngram up to batch 32 on an H200: measure both."
    return ""


def _obstacle(context: Context, resolved: Resolved, column: str, runner: str | None) -> str:
    """Return what keeps asynchronous scheduling from being used, as words; empty where nothing does.

    Args:
        context: the setup.
        resolved: its speculative config.
        column: `default` or `explicit`, of the release's table.
        runner: that takes the work; None where it is not known.
    """
    if _depends_on_runner(context) and runner != "V1":
        return ""
    if resolved.method not in context.release.table(_TOPIC)[column]:
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
