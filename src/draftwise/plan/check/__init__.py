"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from draftwise.core import Effect, Finding, Ruling, Setup
from draftwise.plan.check.batch import fill_in_batch, find_batch
from draftwise.plan.check.context import Context, get_context
from draftwise.plan.check.early import EARLY, find_early
from draftwise.plan.check.hybrid import find_hybrid
from draftwise.plan.check.later import async_scheduling, find_engine, find_later, runner
from draftwise.plan.check.report import Report, Resolved
from draftwise.plan.check.resolve import resolve
from draftwise.plan.check.target import find_target, read_target
from draftwise.plan.check.weights import find_weights

__all__ = ["Context", "Report", "Resolved", "check", "check_many", "get_context"]

_DROPPED = {
    "schedule-off-on-v1": "num_speculative_tokens_per_batch_size",
    "schedule-off-with-data-parallel": "num_speculative_tokens_per_batch_size",
}
"""Findings of the engine's config -> the key that it empties."""


def check(setup: Setup) -> Report:
    """Return what the setup's vLLM release makes of it.

    A target or drafter that is neither a directory here nor in the table of known models is judged by its name alone.

    Raises:
        InvalidSetup: the version is unknown, or names nothing that is covered.
    """
    context = get_context(setup)
    target, rulings = read_target(context)
    context = fill_in_batch(context, target)
    findings: list[Finding] = [*context.rulings, *rulings, *find_early(context)]
    resolved = None
    if context.spec is not None:
        spec_rulings, resolved = resolve(context, target)
        resolved = _complete(context, resolved)
        findings += spec_rulings
    findings += find_batch(context, target)
    if target is not None:
        findings += find_target(context, target, None if resolved is None else resolved.method)
        findings += find_hybrid(context, target, speculates=context.spec is not None)
    engine = [ruling for ruling in find_engine(context, resolved) if ruling.code not in EARLY]
    findings += engine
    resolved = _switch_off(resolved, {ruling.code for ruling in engine})
    if resolved is not None and not _is_rejected(findings):
        findings += find_later(context, resolved)
        findings += find_weights(context, resolved)
    return Report(
        version=str(context.release),
        setup=setup,
        findings=tuple(findings),
        resolved=None if _is_rejected(findings) else resolved,
    )


def check_many(setups: Iterable[Setup]) -> Sequence[Report]:
    """Return a report for each setup, in order."""
    return [check(setup) for setup in setups]


def _complete(context: Context, resolved: Resolved | None) -> Resolved | None:
    """Fill in which runner takes the work and how it is scheduled."""
    if resolved is None:
        return None
    taken = runner(
        context, resolved.method, parallel_drafting=resolved.parallel_drafting,
        draft_architectures=resolved.draft_architectures,
    )  # fmt: skip
    resolved = replace(resolved, runner=taken.name)
    return replace(resolved, async_scheduling=async_scheduling(context, resolved))


def _switch_off(resolved: Resolved | None, codes: Iterable[str]) -> Resolved | None:
    """Take out what the engine drops, by the codes of its findings."""
    dropped = {_DROPPED[code]: None for code in codes if code in _DROPPED}
    return resolved if resolved is None or not dropped else replace(resolved, fields={**resolved.fields, **dropped})


def _is_rejected(findings: Iterable[Finding]) -> bool:
    return any(isinstance(each, Ruling) and each.effect is Effect.REJECTED for each in findings)
