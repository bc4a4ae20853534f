"""A run that is about to be measured, new or continued: its plan, its directory and its servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from draftwise.backends.vllm_command import find_version, split_command
from draftwise.core import Arm, Expectation, InvalidSetup, LaunchOptions, Omission, Progress, RunContext, RunPlan
from draftwise.measure.access import Header, check_headers
from draftwise.measure.context import build_context, runs_here
from draftwise.measure.device_state import DeviceWatch
from draftwise.measure.planning import make_plan
from draftwise.measure.screening import screen
from draftwise.measure.servers import build_backends, judge_backends, line_up
from draftwise.measure.session import Session
from draftwise.measure.spec import DEFAULT_MINUTES, MeasurementSpec
from draftwise.runs import RunDirectory

__all__ = ["Measurement", "prepare", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that a session needs but the servers."""

    plan: RunPlan
    context: RunContext
    directory: RunDirectory
    is_resumed: bool = False
    expected: tuple[Expectation, ...] = ()
    omissions: tuple[Omission, ...] = ()
    """Candidates that were left out before anything was measured."""
    headers: tuple[Header, ...] = ()
    processes: int | None = None
    budget_s: float | None = None
    """Time for all of it, from `began_s` to the report; None for as long as it takes."""
    began_s: float = field(default_factory=time.monotonic)
    """When it was asked for, on the monotonic clock."""

    def open(self, progress: Progress) -> Session:
        """Return the session that measures it; its servers are not started yet.

        Args:
            progress: receives what `check` warns of in the setups, what the servers do while they start, and what
                the session reports.

        Raises:
            InvalidSetup: a server cannot be started so, or its release would refuse its setup.
        """
        arms = self.plan.arms
        try:
            single, joined = self.plan.one_at_a_time, None
            backends = build_backends(
                arms, self.context, self.directory, headers=self.headers, on_wait=progress.status, one_at_a_time=single
            )
            for finding in judge_backends(backends):
                progress.notice(finding)
            if single:
                backends, joined = line_up(backends, arms, self.context.launch)
        except InvalidSetup:
            self.directory.leave()
            raise
        return Session(
            plan=self.plan,
            backends=backends,
            directory=self.directory,
            context=self.context,
            progress=progress,
            read_device=DeviceWatch(gpus=all(map(runs_here, arms))).read,
            processes=self.processes,
            resume=self.is_resumed,
            expected=self.expected,
            omissions=self.omissions,
            line_up=joined,
            budget_s=self.budget_s,
            spent_s=time.monotonic() - self.began_s,
        )


def prepare(spec: MeasurementSpec, progress: Progress, *, began_s: float | None = None) -> Measurement:
    """Plan a new run and claim its directory.

    Args:
        spec: what to measure.
        progress: receives what was chosen, and what weakens it.
        began_s: when it was asked for, on the monotonic clock; None for now.

    Raises:
        InvalidSetup: the options contradict each other, or name what is not there or cannot be measured.
    """
    began_s = time.monotonic() if began_s is None else began_s
    plan = make_plan(spec, progress)
    context = build_context(plan.arms, notes=spec.notes, thresholds=spec.thresholds, launch=spec.launch)
    screened = screen(plan, spec, context, progress)
    return Measurement(
        plan=screened.plan,
        expected=screened.expected,
        omissions=screened.omissions,
        context=context,
        directory=RunDirectory.claim(spec.out or Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))),
        headers=spec.headers,
        processes=spec.processes,
        budget_s=_find_budget(spec),
        began_s=began_s,
    )


def _find_budget(spec: MeasurementSpec) -> float | None:
    """Return the seconds that were asked for; None where only a number of prompts was."""
    if spec.minutes is None:
        return None if spec.prompts else 60 * DEFAULT_MINUTES
    return 60 * spec.minutes


def resume(
    path: Path,
    *,
    headers: Sequence[Header] = (),
    processes: int | None = None,
    minutes: float | None = None,
    began_s: float | None = None,
) -> Measurement:
    """Return the rest of a run that was begun.

    Args:
        path: its directory.
        headers: of the requests to servers that run already.
        processes: of the load generator; None for as many as the load needs.
        minutes: for all of the rest; None for as long as it takes.
        began_s: when it was asked for, on the monotonic clock; None for now.

    Raises:
        InvalidSetup: the directory holds no run, or its requests had headers that are not given again.
    """
    began_s = time.monotonic() if began_s is None else began_s
    directory = RunDirectory(path)
    run = directory.read()
    before = run.context
    check_headers(headers, run.plan.arms)
    arms = tuple(_at_present(arm, before.launch) for arm in run.plan.arms)
    return Measurement(
        plan=replace(run.plan, arms=arms),
        context=build_context(arms, notes=before.notes, thresholds=before.thresholds, launch=before.launch),
        directory=directory,
        is_resumed=True,
        headers=tuple(headers),
        processes=processes,
        budget_s=None if minutes is None else 60 * minutes,
        began_s=began_s,
    )


def _at_present(arm: Arm, launch: LaunchOptions) -> Arm:
    """Return an arm with the release of vLLM that its command runs now, where that can be found out."""
    version = find_version(split_command(launch.vllm)) if arm.url is None and arm.setup.engine == "vllm" else None
    return arm if version is None else replace(arm, setup=replace(arm.setup, engine_version=version))
