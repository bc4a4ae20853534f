"""From what is to be measured to the plan of a run: arms, workloads and loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, Replay, RunPlan, Severity, Workload
from draftwise.core.finding import join_names
from draftwise.knowledge.remembering import find_remembering
from draftwise.measure.arms import make_arms
from draftwise.measure.spec import DEFAULT_CANDIDATES, MeasurementSpec
from draftwise.runs.blocks import count_needed, share_out
from draftwise.workloads import check_workloads, find_tokens, load_workloads, profile_workload

__all__ = ["explain_sharing", "make_plan"]


def make_plan(spec: MeasurementSpec, tell: Callable[[str], None]) -> RunPlan:
    """Return the plan of a new run.

    Args:
        spec: what to measure.
        tell: called with a line on what was chosen, on each workload, and on what weakens it.

    Raises:
        InvalidSetup: the options contradict each other, or name what is not there or cannot carry a conclusion.
    """
    if conflict := spec.find_conflict():
        raise InvalidSetup.because("options-conflict", conflict, where="decide")
    if spec.target is not None and not spec.candidates:
        texts = (each.spec.to_json() for each in DEFAULT_CANDIDATES if each.spec is not None)
        tell(" ".join(("No --candidate given; taking those that need nothing but the target:", *texts)))
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
        tell(f"{finding.severity}: {finding}")
    for line in (*_profile(workloads, spec.target), *explain_sharing(plan)):
        tell(line)
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


def explain_sharing(plan: RunPlan) -> Iterator[str]:
    """Yield a line on each candidate that is asked no prompt twice, and on each workload that is too short for that."""
    for name, reason in plan.remembering.items():
        yield f"{name} is asked no prompt twice, as it could remember answers: {reason}."
    for finding in _check_shares(plan):
        yield f"{finding.severity}: {finding}"


def _check_shares(plan: RunPlan) -> Iterator[Finding]:
    """Yield the workloads that are too short for every load, where a candidate is asked no prompt twice."""
    for workload in plan.workloads if plan.remembering else ():
        carried = {label for label, _ in share_out(plan, workload)}
        if short := [each for each in plan.conditions if each.label not in carried]:
            needed = ", ".join(f"{each.label} would need {count_needed(workload, each, plan.turn_s)}" for each in short)
            at = [each.label for each in plan.conditions if each.label in carried]
            measured = f"measured at {join_names(at)}" if at else "not measured"
            yield Finding.warning(
                "too-few-to-ask-once",
                f"{len(workload.prompts)} prompts are too few for {join_names(plan.remembering)}, asked each "
                f"of them once: {measured}; {needed} prompts of its own.",
                where=workload.name,
                fix="Give more prompts, fewer loads, or a config that remembers nothing.",
            )


def _profile(workloads: tuple[Workload, ...], target: str | None) -> Iterator[str]:
    """Yield a line on each workload that is not the package's own."""
    if own := [workload for workload in workloads if workload.source != "bundled"]:
        tokens = find_tokens(None, hint=None if target is None else Path(target))
        yield from (f"{workload.name}: {profile_workload(workload, tokens)}" for workload in own)
