"""From what is to be measured to the plan of a run: arms, workloads and loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, Progress, Replay, RunPlan, Severity, Workload
from draftwise.knowledge.remembering import find_remembering
from draftwise.measure.arms import make_arms
from draftwise.measure.preflight import explain_sharing
from draftwise.measure.spec import DEFAULT_CANDIDATES, MeasurementSpec
from draftwise.workloads import check_workloads, find_tokens, load_workloads, profile_workload

__all__ = ["make_plan"]


def make_plan(spec: MeasurementSpec, progress: Progress) -> RunPlan:
    """Return the plan of a new run.

    Args:
        spec: what to measure.
        progress: receives what was chosen, a line on each workload, and what weakens the plan.

    Raises:
        InvalidSetup: the options contradict each other, or name what is not there or cannot carry a conclusion.
    """
    if conflict := spec.find_conflict():
        raise InvalidSetup.because("options-conflict", conflict, where="decide")
    if spec.target is not None and not spec.candidates:
        texts = (each.spec.to_json() for each in DEFAULT_CANDIDATES if each.spec is not None)
        text = " ".join(("No --candidate given; taking those that need nothing but the target:", *texts))
        progress.notice(Finding.info("measurement-planned", text))
    workloads = _load_all(spec)
    arms = make_arms(spec)
    plan = RunPlan(
        arms=arms,
        workloads=workloads,
        remembering=find_remembering(arms),
        conditions=spec.conditions,
        repeats=spec.repeats,
        warmup=spec.warmup,
        seed=spec.seed,
        turn_s=spec.turn_s,
        adaptive=spec.adaptive,
        one_at_a_time=spec.one_at_a_time or spec.launch.switch is not None,
    )
    for finding in _check_prompts(plan):
        progress.notice(finding)
    for line in _profile(workloads, spec.target):
        progress.notice(Finding.info("measurement-planned", line))
    for finding in explain_sharing(plan):
        progress.notice(finding)
    return plan


def _load_all(spec: MeasurementSpec) -> tuple[Workload, ...]:
    tokenizer = None if spec.target is None else Path(spec.target)
    workloads = tuple(
        workload.first(spec.prompts).without_answers()
        for text in spec.workloads
        for workload in load_workloads(text, max_tokens=spec.max_tokens, tokenizer=tokenizer)
    )
    names = [workload.name for workload in workloads]
    if len(set(names)) < len(names):
        raise InvalidSetup.because("duplicate-workload", f"Names repeat: {', '.join(names)}.", where="--workload")
    return workloads


def _check_prompts(plan: RunPlan) -> list[Finding]:
    """Return what weakens a conclusion from the prompts; refuse those that cannot carry one."""
    replays = any(isinstance(condition.load, Replay) for condition in plan.conditions)
    measured = any(arm.name not in plan.synthetic for arm in plan.arms[1:])
    findings = check_workloads(plan.workloads, measures_acceptance=measured, needs_arrivals=replays)
    if faults := [finding for finding in findings if finding.severity is Severity.ERROR]:
        raise InvalidSetup(faults)
    return list(findings)


def _profile(workloads: tuple[Workload, ...], target: str | None) -> Iterator[str]:
    """Yield a line on each workload that is not the package's own."""
    if own := [workload for workload in workloads if workload.source != "bundled"]:
        tokens = find_tokens(None, hint=None if target is None else Path(target))
        yield from (f"{workload.name}: {profile_workload(workload, tokens)}" for workload in own)
