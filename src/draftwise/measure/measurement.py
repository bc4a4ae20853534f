"""Prepares a run, new or resumed: its plan, its directory and its servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from draftwise.backends import Backend, EmbeddedBackend, LineUp, OneAtATime, SwitchCommand, UrlBackend, VllmBackend
from draftwise.backends.gpu_placement import GpuPlacement, find_gpus, place_arms
from draftwise.backends.vllm_server import find_version, split_command
from draftwise.core import (
    Arm,
    Expectation,
    Finding,
    InvalidSetup,
    LaunchOptions,
    Omission,
    Progress,
    RunContext,
    RunPlan,
    Setup,
    Severity,
)
from draftwise.core.finding import join_names
from draftwise.knowledge.messages import refusal, warning
from draftwise.machine.processes import count_cores
from draftwise.measure.access import Header, check_headers, find_headers
from draftwise.measure.device_state import DeviceWatch
from draftwise.measure.measurement_spec import MeasurementSpec
from draftwise.measure.planning import is_covered, make_plan
from draftwise.measure.readiness import explain_sharing
from draftwise.measure.run_context import build_context, runs_here
from draftwise.measure.screening import screen
from draftwise.measure.session import Session
from draftwise.runs import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything that a session needs, except the servers."""

    plan: RunPlan
    context: RunContext
    directory: RunDirectory
    is_resumed: bool = False
    expected: tuple[Expectation, ...] = ()
    omissions: tuple[Omission, ...] = ()
    """Candidates left out before the first measurement."""
    headers: tuple[Header, ...] = ()
    processes: int | None = None
    budget_s: float | None = None
    """Seconds for the whole run, from `began_s` to the report. None: unlimited."""
    began_s: float = field(default_factory=time.monotonic)
    """Time of the request, on the monotonic clock."""

    def open(self, progress: Progress, examine: Callable[[RunPlan, RunContext], None] | None = None) -> Session:
        """Return the session that measures the run. It has not started its servers.

        Args:
            progress: receives `check`'s warnings about the setups, the servers' start-up phases, and the session's
                reports.
            examine: called with what the servers report about themselves; raises to refuse them.

        Raises:
            InvalidSetup: a server cannot start with these settings, or its release would reject its setup.
        """
        arms = self.plan.arms
        try:
            single, joined = self.plan.one_at_a_time, None
            waits = _Waits(progress.status)
            backends = build_backends(
                arms, self.context, self.directory, headers=self.headers, on_wait=waits.report, one_at_a_time=single
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
            examine=examine,
            starts_at_once=count_cores() if arms[0].url is None else None,
        )


def prepare(spec: MeasurementSpec, progress: Progress, *, began_s: float | None = None) -> Measurement:
    """Plan a new run and claim its directory.

    Args:
        spec: what to measure.
        progress: receives what was chosen, and what weakens the result.
        began_s: time of the request, on the monotonic clock. None: now.

    Raises:
        InvalidSetup: options contradict each other, or name something that does not exist or cannot be measured.
    """
    began_s = time.monotonic() if began_s is None else began_s
    plan = make_plan(spec, progress)
    context = build_context(plan.arms, notes=spec.notes, thresholds=spec.thresholds, launch=spec.launch)
    for finding in explain_sharing(plan):
        progress.notice(finding)
    screened = screen(plan, spec, context, progress)
    return Measurement(
        plan=screened.plan,
        expected=screened.expected,
        omissions=screened.omissions,
        context=context,
        directory=RunDirectory.claim(spec.out or Path("runs", datetime.now().strftime("%Y%m%d-%H%M%S"))),
        headers=spec.headers,
        processes=spec.processes,
        budget_s=None if screened.plan.minutes is None else 60 * screened.plan.minutes,
        began_s=began_s,
    )


def resume(
    path: Path,
    *,
    headers: Sequence[Header] = (),
    processes: int | None = None,
    minutes: float | None = None,
    began_s: float | None = None,
) -> Measurement:
    """Return what remains of a run.

    Args:
        path: run directory.
        headers: headers for requests to running servers.
        processes: processes of the load generator. None: as many as the load needs.
        minutes: time budget for the rest. None: the run's own budget, if it has one.
        began_s: time of the request, on the monotonic clock. None: now.

    Raises:
        InvalidSetup: the directory holds no run, or the headers of its requests are missing.
    """
    began_s = time.monotonic() if began_s is None else began_s
    directory = RunDirectory(path)
    run = directory.read()
    before, minutes = run.context, run.plan.minutes if minutes is None else minutes
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


_CACHE_SIZES = frozenset({"kv_cache_memory_bytes", "num_gpu_blocks_override"})
"""Arguments with which vLLM does not look at the GPU's free memory to size its KV cache."""


def build_backends(
    arms: Sequence[Arm],
    context: RunContext,
    directory: RunDirectory,
    *,
    headers: Sequence[Header] = (),
    on_wait: Callable[[str, str], None],
    one_at_a_time: bool = False,
) -> list[Backend]:
    """Return the server of every arm. None is started yet.

    Args:
        on_wait: called with an arm and its server's start-up phase; with an empty text when the start ends.
        headers: headers for requests to running servers.
        one_at_a_time: whether one server is up at a time, so each gets all GPUs.

    Raises:
        InvalidSetup: a server needs more GPUs than the machine has, or its command is invalid.
    """
    if arms[0].url is not None:
        return [
            UrlBackend(
                arm.name,
                arm.url or "",
                headers=find_headers(headers, arm.name),
                metrics_url=arm.metrics_url,
                metrics_headers=find_headers(headers, arm.name, of_metrics=True),
                command=context.notes.get(f"command.{arm.name}"),
            )
            for arm in arms
        ]
    reports = {arm.name: partial(on_wait, arm.name) for arm in arms}
    placements = _place(arms, context) if not one_at_a_time else _place(arms[:1], context) * len(arms)
    if arms[0].setup.engine != "vllm":
        return [
            EmbeddedBackend(
                arm.name, arm.setup, log=directory.log_of(arm.name), placement=placement, on_wait=reports[arm.name]
            )
            for arm, placement in zip(arms, placements, strict=True)
        ]
    in_turn = asyncio.Lock() if _must_start_in_turn(arms[0].setup, placements) else None
    return [
        VllmBackend(
            arm.name,
            arm.setup,
            log=directory.log_of(arm.name),
            vllm=context.launch.vllm,
            placement=placement,
            on_wait=reports[arm.name],
            in_turn=in_turn,
        )
        for arm, placement in zip(arms, placements, strict=True)
    ]


def line_up(backends: Sequence[Backend], arms: Sequence[Arm], launch: LaunchOptions) -> tuple[list[Backend], LineUp]:
    """Return backends of which one is up at a time, and their line-up.

    Raises:
        InvalidSetup: the switch command is invalid.
    """
    replacing = None
    if launch.switch is not None:
        stay = launch.leave or arms[0].name
        if stay not in [arm.name for arm in arms]:
            raise refusal("unknown-arm", case="leave", stay=stay, names=", ".join(arm.name for arm in arms))
        replacing = SwitchCommand(command=launch.switch, baseline=arms[0].name, stay=stay)
    joined = LineUp(replacing)
    return [OneAtATime(each, joined) for each in backends if isinstance(each, UrlBackend)], joined


def _place(arms: Sequence[Arm], context: RunContext) -> list[GpuPlacement | None]:
    gpus = find_gpus() if context.launch.gpus is None else context.launch.gpus
    return list(place_arms(len(arms), gpus, arms[0].setup.args)) if gpus else [None] * len(arms)


class _Waits:
    """Names what is waited for: the servers that are starting, with what the first of them does."""

    def __init__(self, status: Callable[[str], None]) -> None:
        self._status = status
        self._doing: dict[str, str] = {}

    def report(self, arm: str, doing: str) -> None:
        """Record a server's start-up phase; an empty text when the start has ended."""
        if doing:
            self._doing[arm] = doing
        else:
            self._doing.pop(arm, None)
        if self._doing:
            (first, what), *others = self._doing.items()
            more = f"; also {join_names([name for name, _ in others], most=3)}" if others else ""
            self._status(f"{first} is starting: {what}{more}")


def _must_start_in_turn(setup: Setup, placements: Sequence[GpuPlacement | None]) -> bool:
    """Return whether servers would disturb each other's start: they share cores, or measure a shared GPU's memory."""
    if any(placement is None for placement in placements):
        return True
    fixed = not _CACHE_SIZES.isdisjoint(setup.args)
    return not fixed and any(placement is not None and placement.sharing > 1 for placement in placements)


def judge_backends(backends: Sequence[Backend]) -> list[Finding]:
    """Return `check`'s warnings about the setups about to start, each finding once.

    Judges only vLLM setups; the embedded server checks its own. An unknown release does not stop the run.

    Raises:
        InvalidSetup: a release would reject a setup or fail with it.
    """
    found: dict[tuple[str, str], Finding] = {}
    for arm, finding in _judge_all(backends):
        found.setdefault((finding.code, finding.message), replace(finding, where=f"{arm} {finding.where}".strip()))
    if errors := [each for each in found.values() if each.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return [each for each in found.values() if each.severity is Severity.WARNING]


def _judge_all(backends: Sequence[Backend]) -> Iterator[tuple[str, Finding]]:
    from draftwise.plan.check import check  # takes longer to import than all else here

    for backend in backends:
        if not isinstance(backend, VllmBackend) or not backend.setup.engine_version:
            continue
        if is_covered(backend.setup.engine_version):
            yield from ((backend.name, finding) for finding in check(backend.setup).findings)
        else:
            yield backend.name, warning("setup-unjudged", version=backend.setup.engine_version)
