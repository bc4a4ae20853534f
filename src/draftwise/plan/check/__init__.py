"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftwise.core import Effect, Finding, Ruling, Setup
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine import complete, fill_in_batch, find_batch, find_early
from draftwise.plan.check.model import Model, find_target, find_weights, read_target
from draftwise.plan.check.report import Report, Resolved
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.spec import resolve
from draftwise.plan.check.steps import Step, collect

__all__ = ["Context", "Report", "Resolved", "check", "check_context", "check_many", "get_context"]


def check(setup: Setup) -> Report:
    """Return what the setup's vLLM release makes of it.

    A target or drafter that is neither a directory here nor in the table of known models is judged by its name alone.

    Raises:
        InvalidSetup: the version is unknown, or names nothing that is covered.
    """
    return check_context(get_context(setup))


def check_context(context: Context) -> Report:
    """Return what the release makes of a setup that was looked up before."""
    about_target, target = collect(read_target(context))
    context = fill_in_batch(context, target)
    about_config, resolved = collect(_configure(context, target))
    findings: list[Finding] = [*context.rulings, *about_target, *about_config]
    if any(isinstance(each, Ruling) and each.effect is Effect.REJECTED for each in findings):
        resolved = None
    elif resolved is not None:
        findings += find_serving(context, resolved)
        findings += find_weights(context, resolved)
    return Report(
        version=str(context.release),
        setup=context.setup,
        findings=tuple(findings),
        resolved=resolved,
    )


def check_many(setups: Iterable[Setup]) -> Sequence[Report]:
    """Return a report for each setup, in order."""
    return [check(setup) for setup in setups]


def _configure(context: Context, target: Model | None) -> Step[Resolved | None]:
    """Go through the making of the server's configuration; return its speculative part."""
    yield from find_early(context)
    resolved = None
    if context.spec is not None:
        resolved = yield from resolve(context, target)
    yield from find_batch(context, target)
    if target is not None:
        yield from find_target(context, target, None if resolved is None else resolved.method)
    return (yield from complete(context, resolved))
