"""Runs one session: starts the servers, warms up, measures everything missing, stops the servers."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from draftwise.backends import Backend, LineUp
from draftwise.core import (
    Answer,
    BackendError,
    Divergence,
    Expectation,
    Finding,
    InvalidSetup,
    Omission,
    OutputProbe,
    Progress,
    Prompt,
    RunContext,
    RunPlan,
    ServerRecord,
    Severity,
    Stopped,
)
from draftwise.core.documents import to_json
from draftwise.deciding.comparison.cell import OutputDifference, find_difference
from draftwise.deciding.conclusions import find_early_end
from draftwise.deciding.disturbance import set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.deciding.validity.output_checks import find_rounding, is_flagged
from draftwise.deciding.validity.server_checks import find_differences
from draftwise.knowledge.messages import note, refusal, text_of
from draftwise.knowledge.methods import find_method
from draftwise.measure.device_state import DeviceReader
from draftwise.measure.divergences import examine, list_differences
from draftwise.measure.experiment import Experiment, no_device
from draftwise.measure.load.client import Client
from draftwise.measure.output_probes import answer_greedily, choose_probes, compare_probes, find_null, needs_probes
from draftwise.measure.pilot import (
    Lengths,
    MachinePace,
    Pilot,
    look_at_lengths,
    look_at_machine,
    look_at_paces,
    make_estimate,
    spare_prompts,
)
from draftwise.measure.readiness import (
    WarmUp,
    check_addresses,
    check_drafting,
    explain_sharing,
    make_greeting,
    presume_warm_prefixes,
    settle,
    warm_up,
)
from draftwise.measure.roster import Returns, Roster
from draftwise.measure.run_context import describe_server
from draftwise.measure.sweep import Sweep
from draftwise.measure.time_budget import TimeBudget
from draftwise.measure.time_estimate import TimeEstimate, describe_plan, expect_least, fit_plan
from draftwise.reporting.conditions import describe_omissions
from draftwise.runs import RunDirectory
from draftwise.statistics import FEWEST_PROMPTS
from draftwise.workloads import keep_fitting

_MANY_SERVERS = 4
"""Minimum number of servers for which the session checks how many fit into the time before it starts them. With
this many, it sends pilot requests only if the time may not suffice."""
_LOOKED_AT_MORE = 1.3
"""A candidate's warm-up and pilot requests take this multiple of its prompts' time."""
_STARTING_S = 45.0
"""Seconds after which to judge by a start that is not over whether the time suffices."""
_FASTEST = 0.4
"""A candidate is assumed to take at least this share of the baseline's time when a machine is called too slow."""
_ASKED_AGAIN = 24
"""Differing outputs of a candidate to request again from both servers before calling them different."""
_MOST_CHANGES = 3
"""Number of changes named in a refusal to resume."""
_RETURN_S = 30.0
"""Seconds to wait for an operator's server that fails while nothing is measured."""
_TIMED = 5
"""Number of readings of counters and machine state whose median gives their duration."""
_PLANNED_MORE = 1.25
"""Advised time on a slow machine as a multiple of the forecast: warm-ups and pilots come on top."""
_ROOMY = 0.7
"""Share of the remaining time that the fewest prompts may take by the warm-up's paces, without a closer look."""
_PLANNED = 0.98
"""Share of the remaining time to plan for turns; the rest is for work between them."""


class _TrackedProgress:
    """Forwards to a Progress and keeps what is under way."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.doing = "preparing the measurement"

    def status(self, text: str) -> None:
        self.doing = text
        self._progress.status(text)

    def plan(self, steps: int, seconds: float | None) -> None:
        self._progress.plan(steps, seconds)

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        if text:
            self.doing = f"the last answer was {text}"
        self._progress.step(done, seconds_left, text)

    def notice(self, finding: Finding) -> None:
        self._progress.notice(finding)

    def update(self, result: object) -> None:
        self._progress.update(result)

    @property
    def stop_requested(self) -> bool:
        return self._progress.stop_requested


@dataclass(slots=True, kw_only=True)
class Session:
    """Measures a plan into a directory. However it ends, its servers are stopped and everything measured is on disk.

    Args:
        backends: one server per arm, in the plan's order.
        context: hardware, software and model; the session adds the servers' records.
        read_device: reads the machine's state after each turn.
        processes: processes of the load generator. None: as many as the load needs.
        resume: whether the directory holds the plan's earlier turns.
        expected: forecasts of the plan's cells.
        omissions: parts left out of the plan before the session.
        budget_s: seconds for the whole run, report included. None: unlimited.
        spent_s: seconds since the command was given.
        starts_at_once: number of servers that start together. None: all.
        examine: called with what the servers report about themselves, before any other request; raises to refuse them.
        progress: receives the plan, its estimated time, findings and omissions.
        line_up: the backends' line-up if one is up at a time. None: all are up.
    """

    plan: RunPlan
    backends: Sequence[Backend]
    directory: RunDirectory
    context: RunContext
    progress: Progress
    line_up: LineUp | None = None
    read_device: DeviceReader = no_device
    processes: int | None = None
    resume: bool = False
    expected: Sequence[Expectation] = ()
    omissions: Sequence[Omission] = ()
    budget_s: float | None = None
    spent_s: float = 0.0
    starts_at_once: int | None = None
    examine: Callable[[RunPlan, RunContext], None] | None = None
    is_stopped: bool = field(default=False, init=False)
    """Whether the session ended because `progress` asked to stop. The rest can be measured later."""
    _tracked: _TrackedProgress = field(init=False)
    _greedy: dict[str, list[Answer | None]] = field(default_factory=dict, init=False)
    _probes: list[OutputProbe] = field(default_factory=list, init=False)
    _pace: MachinePace | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)
    _returned: set[str] = field(default_factory=set, init=False)
    """Candidates that the run was measured without before it was continued."""

    async def run(self) -> None:
        """Measure until the plan is complete, the time is over or `progress` asks to stop.

        Raises:
            BackendError: a server failed, or did not answer in time.
            InvalidSetup: the run is resumed on other hardware or software, or a server is not the intended one.
        """
        self._tracked = _TrackedProgress(self.progress)
        began = asyncio.get_running_loop().time() - self.spent_s
        budget = TimeBudget(seconds=math.inf if self.budget_s is None else self.budget_s, began=began)
        try:
            async with asyncio.timeout_at(budget.cut_at) as cut:
                await self._measure(budget, cut)
        except Stopped:
            self.is_stopped = True
        except TimeoutError:
            if not cut.expired():
                raise
            raise BackendError(text_of("time-ran-out", doing=self._tracked.doing)) from None
        finally:
            self.directory.close()
            await asyncio.gather(*(backend.stop() for backend in self.backends), return_exceptions=True)

    async def _measure(self, budget: TimeBudget, cut: asyncio.Timeout) -> None:
        if self.line_up is None:
            check_addresses(self.plan.arms)
        roster = self._make_roster()
        # What draftwise starts itself does not come back by itself.
        if all(arm.url for arm in self.plan.arms):
            roster.returns = self._make_returns(roster, budget)
        given = self.plan
        warm, estimate = await self._prepare(roster, budget)
        cut.reschedule(budget.cut_at)
        roster.may_leave_out = False
        await self._begin(roster, estimate, budget)
        self.directory.reserve()
        if roster.returns is not None:
            roster.returns.keep = self.directory.add
        if self.line_up is not None:
            self.line_up.warm = self._make_warmer(roster, budget)
        sweep = self._make_sweep(roster, warm, estimate, budget)
        self._report_plan(given, self._list_present(roster), warm, sweep.expect_seconds())
        try:
            await sweep.run()
        finally:
            sweep.experiment.close()
        for finding in find_early_end(self.directory.read()):
            self.progress.notice(finding)
        cut.reschedule(None)
        # Everything is measured: report the unexamined rest as such.
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout_at(budget.examination_end):
                await self._examine_differences(roster.clients, budget)

    @property
    def _starting(self) -> str:
        """What is waited for first: who runs servers already has nothing started, unless a command replaces them."""
        runs_already = self.line_up is None and all(arm.url for arm in self.plan.arms)
        return "waiting for the servers' first answers" if runs_already else "starting the servers"

    def _make_roster(self) -> Roster:
        return Roster(
            backends=self.backends,
            progress=self._tracked,
            # Where a command replaces servers, nobody knows which one is up once it has failed.
            may_leave_out=self.line_up is None or self.plan.arms[0].url is None,
            is_one_at_a_time=self.line_up is not None,
            starts_at_once=self.starts_at_once,
        )

    def _make_sweep(self, roster: Roster, warm: WarmUp, estimate: TimeEstimate, budget: TimeBudget) -> Sweep:
        experiment = Experiment(
            plan=self.plan,
            directory=self.directory,
            clients=roster.clients,
            progress=self._tracked,
            read_device=self.read_device,
            processes=self.processes,
            cold=set(warm.unsteady),
        )
        return Sweep(
            experiment=experiment,
            estimate=estimate,
            budget=budget,
            without=set(roster.left_out),
            returned=self._returned,
            returns=roster.returns,
            fastest=warm.fastest,
        )

    def _report_plan(self, given: RunPlan, plan: RunPlan, warm: WarmUp, seconds: float) -> None:
        """Report what is going to be measured, and what the warm-up changed in the plan that was given."""
        for line in describe_plan(plan, warm.pace, seconds):
            self.progress.notice(Finding.info("measurement-planned", line))
        if (plan.workloads, plan.remembering) != (given.workloads, given.remembering):
            for finding in explain_sharing(plan):
                self.progress.notice(finding)

    def _list_present(self, roster: Roster) -> RunPlan:
        """Return the plan without the candidates whose servers failed."""
        return self.plan.keep_arms([backend.name for backend in roster.present])

    async def _prepare(self, roster: Roster, budget: TimeBudget) -> tuple[WarmUp, TimeEstimate]:
        """Start and warm up all servers, or one after the other, see to it that they are what they should be, and look
        at a few of their outputs."""
        clock, progress = asyncio.get_running_loop().time, self._tracked
        ordered = _sort_by_promise(self.plan, self.backends)
        groups = [ordered] if self.line_up is None else [[backend] for backend in self.backends]
        salt = secrets.token_hex(4)
        warm, pilots = WarmUp(pace={}, decoding={}, counters={}, unsteady={}), dict[tuple[str, str], Pilot]()
        lengths: Lengths = {}
        spared: Mapping[str, tuple[Prompt, ...]] | None = None
        starts: list[float] = []
        unrest: str | None = None
        for group in groups:
            began, share = clock(), len(group) / len(self.backends)
            progress.status(self._starting)
            group = await self._start_what_fits(roster, group, budget, salt)
            budget.start_s = max(roster.starts.values(), default=0.0)
            for arm in self.plan.arms:
                if arm.url is not None and arm.name in roster.clients:
                    roster.clients[arm.name].patience_s = _RETURN_S  # somebody may be restarting it
            if self.examine is not None:
                self.examine(self.plan, replace(self.context, servers=await self._describe(roster, roster.present)))
            if not self.resume:
                self.plan = presume_warm_prefixes(self.plan, roster.clients)
            warm_up_end = budget.warm_up_end(clock(), share)
            warm = warm.join(await warm_up(roster, group, self.plan, ends_at=warm_up_end, progress=progress))
            starts.append(clock() - began)
            unrest = (
                await settle(self.read_device, ends_at=budget.settle_end(clock(), share), progress=progress) or unrest
            )
            if spared is None:
                spared = self._spare(budget)
                lengths = await self._look_at_lengths(roster, budget)
            await self._probe_outputs(roster, group)
            if not self._has_room(roster, warm, lengths, budget):
                paces_end = budget.paces_end(clock(), share)
                pilots |= await look_at_paces(roster, group, self.plan, spared, ends_at=paces_end, progress=progress)
        await self._check_warm_up(roster, warm, unrest)
        timed = roster.present[-1]
        overhead_s = await roster.attempt(timed, partial(self._time_readings, timed)) or 0.0
        estimate = make_estimate(self._list_present(roster), warm, lengths, pilots, overhead_s)
        if self.line_up is not None:
            estimate.switch_s = median(starts)
            self._report_switch_cost(estimate.switch_s)
        return warm, estimate

    def _has_room(self, roster: Roster, warm: WarmUp, lengths: Lengths, budget: TimeBudget) -> bool:
        """Return whether the warm-up's paces show room for all of many servers, so that no pilots are needed."""
        if self.line_up is not None or not budget.is_bounded or len(roster.present) < _MANY_SERVERS:
            return False
        plan, left_s = self._list_present(roster), budget.turns_end - asyncio.get_running_loop().time()
        return expect_least(plan, make_estimate(plan, warm, lengths, {}, 0.0)) < _ROOMY * left_s

    async def _start_what_fits(
        self, roster: Roster, group: list[Backend], budget: TimeBudget, salt: str
    ) -> list[Backend]:
        """Start and greet servers; where they share cores with little time, the baseline's first, which tells how fast
        the machine is, and then as many of the others as the time has room for. Return those that stay in the run.

        Raises:
            InvalidSetup: the machine is too slow for the time.
        """
        clock, greeting = asyncio.get_running_loop().time, make_greeting(self.plan)
        ends_at, began = budget.start_end(clock()), clock()
        is_first = self._pace is None and budget.is_bounded and not self.resume and self.starts_at_once is not None
        shares_cores = self.line_up is None and not self.context.hardware.gpus
        first, others = (group[:1], group[1:]) if is_first and shares_cores else (group, [])
        starts = (3 if self.line_up is not None else len(others[:1])) if is_first else 0

        def check() -> None:
            if starts and clock() - began >= _STARTING_S:
                self._check_start(group[0], budget, starts, began)

        await roster.start(first, ends_at=ends_at, check=check)
        start_s = clock() - began
        await roster.greet(first, greeting, salt=salt)
        self._leave_out_long(roster)
        if is_first:
            self._tracked.status("looking at how fast this machine answers")
            self._pace = await look_at_machine(roster.clients[group[0].name], self.plan)
            others = self._keep_what_fits(roster, budget, others, start_s)
            self._tracked.status(self._starting)
        await roster.start(others, ends_at=ends_at)
        await roster.greet(others, greeting, salt=salt)
        self._leave_out_long(roster)
        return first + others

    def _leave_out_long(self, roster: Roster) -> None:
        """Leave out the prompts that cannot fit into the context of a server that is up."""
        contexts = [each.max_model_len for each in roster.clients.values() if each.max_model_len is not None]
        if self.resume or not contexts:
            return
        target = self.plan.arms[0].setup.target
        fitting = []
        for workload in self.plan.workloads:
            kept, said = keep_fitting(workload, min(contexts), Path(target) if target else None)
            fitting.append(kept)
            if said:
                self.progress.notice(note("rows-left-out", name=workload.name, rows=said))
        self.plan = replace(self.plan, workloads=tuple(fitting))

    def _check_start(self, backend: Backend, budget: TimeBudget, starts: int, began: float) -> None:
        """Say how long the first start may take; `starts` more are needed at least.

        Raises:
            InvalidSetup: it takes so long that the time does not suffice for them, whatever is measured.
        """
        took_s, left_s = asyncio.get_running_loop().time() - began, _PLANNED * (budget.turns_end - began)
        start_s = max(took_s, backend.least_start_s())
        if (1 + starts) * start_s > left_s:
            raise _too_slow_to_start(backend.name, took_s, start_s, starts, left_s)
        if not self._has_warned and (1 + starts) * start_s > left_s / 4:
            self._has_warned = True
            text = (
                f"{backend.name} is not up after {took_s:.0f} s. The run needs {1 + starts} starts or more. It ends "
                f"early unless this one takes at most {left_s / (1 + starts):.0f} s."
            )
            self.progress.notice(Finding.info("measurement-planned", text))

    def _keep_what_fits(
        self, roster: Roster, budget: TimeBudget, others: list[Backend], start_s: float
    ) -> list[Backend]:
        """Return those servers that the time has room for, the most promising; the others leave the plan.

        Raises:
            InvalidSetup: there is no room for any.
        """
        assert self._pace is not None
        pace, left_s = self._pace, _PLANNED * (budget.turns_end - asyncio.get_running_loop().time())
        loads, names = len(self.plan.conditions), [each.name for each in self.plan.workloads]
        each_s = pace.expect_s(names, loads)
        # Where servers are up in turn, two repetitions, the fewest with an interval, need three more starts.
        start_s *= 3 if self.line_up is not None else bool(others)
        least_s = (1 + _FASTEST) * min(pace.expect_s([name], 1) for name in names) + start_s
        if least_s > left_s:
            raise _too_slow(pace, self.plan, start_s, left_s=left_s, spent_s=budget.seconds - left_s)
        if len(others) < _MANY_SERVERS - 1:
            return others
        start_s /= min(2, self.starts_at_once or 1)
        count = max(1, len(roster.left_out), math.floor((left_s - each_s) / (_LOOKED_AT_MORE * each_s + start_s)))
        gone = [each.name for each in others[count:]]
        if gone:
            reason = (
                f"a server takes {start_s:.0f} s to start here, {FEWEST_PROMPTS} prompts of each workload take about "
                f"{each_s:.0f} s, and only {left_s / 60:.1f} min are left"
            )
            left_out = [
                Omission(what=f"candidate {name}", reason=reason, candidate=name, is_final=True) for name in gone
            ]
            for line in describe_omissions(left_out):
                self.progress.notice(Finding.info("left-out", f"Left out: {line}.", fix="Give more --minutes."))
            self.omissions = (*self.omissions, *left_out)
            self.plan = self.plan.keep_arms([arm.name for arm in self.plan.arms if arm.name not in gone])
            self.backends = roster.backends = [each for each in self.backends if each.name not in gone]
        return others[:count]

    async def _describe(self, roster: Roster, backends: Sequence[Backend]) -> dict[str, ServerRecord]:
        """Return what servers say of themselves, without those that failed."""
        said = {
            each.name: await roster.attempt(each, partial(describe_server, each, self.context.notes))
            for each in backends
        }
        return {name: record for name, record in said.items() if record is not None}

    async def _look_at_lengths(self, roster: Roster, budget: TimeBudget) -> Lengths:
        async def look() -> Lengths:
            ends_at = budget.lengths_end(asyncio.get_running_loop().time())
            return await look_at_lengths(roster, self.plan, ends_at=ends_at, progress=self._tracked)

        return await roster.attempt(roster.present[0], look) or {}

    async def _probe_outputs(self, roster: Roster, group: Sequence[Backend]) -> None:
        """Ask servers for greedy answers, where no load compares outputs one by one."""
        if self.resume or not needs_probes(self.plan):
            return
        self._tracked.status("comparing greedy answers")
        prompts = choose_probes(self.plan)
        for backend in group:
            if (client := roster.clients.get(backend.name)) is not None:
                answers = await answer_greedily(client, self.plan, prompts)
                self._greedy[backend.name] = answers
                if backend.name != self.plan.arms[0].name and backend.name not in self.plan.synthetic:
                    # Where one server is up at a time, the baseline cannot be asked about the place where they part.
                    clients = roster.clients if self.line_up is None else {}
                    before = self._greedy[self.plan.arms[0].name]
                    self._probes += await compare_probes(before, answers, clients)

    def _spare(self, budget: TimeBudget) -> Mapping[str, tuple[Prompt, ...]]:
        """Return prompts that are in no turn, for a look at outputs."""
        if not budget.is_bounded or self.resume:
            return {}
        self.plan, spared = spare_prompts(self.plan)
        return spared

    def _report_switch_cost(self, switch_s: float) -> None:
        """Say what it costs that one server is up at a time."""
        starts = self.plan.repeats * (len(self.plan.arms) - 1)
        text = (
            f"One server at a time: {starts} starts in {self.plan.repeats} repetitions, about {switch_s:.0f} s each, "
            f"take {starts * switch_s / 60:.1f} min. If time runs short, draftwise measures fewer repetitions."
        )
        self.progress.notice(Finding.info("measurement-planned", text))

    def _make_returns(self, roster: Roster, budget: TimeBudget) -> Returns:
        """Return what waits for servers of others that break."""

        def keep(omission: Omission) -> None:
            self.omissions = (*self.omissions, omission)

        clock = asyncio.get_running_loop().time
        return Returns(
            warm=self._make_warmer(roster, budget),
            left_s=lambda: budget.turns_end - clock(),
            keep=keep,
            progress=self._tracked,
        )

    def _make_warmer(self, roster: Roster, budget: TimeBudget) -> Callable[[str], Awaitable[None]]:
        """Return what makes a server that comes up again warm before it is measured."""

        async def warm(arm: str) -> None:
            ends_at = budget.warm_up_end(asyncio.get_running_loop().time(), 1 / len(self.backends))
            group = [roster.clients[arm].backend]
            # Whoever waits for the server tries again where it breaks in its warm-up.
            before = roster.returns, roster.may_leave_out
            roster.returns, roster.may_leave_out = None, False
            try:
                await warm_up(roster, group, self.plan, ends_at=ends_at, progress=self._tracked)
            finally:
                roster.returns, roster.may_leave_out = before

        return warm

    async def _check_warm_up(self, roster: Roster, warm: WarmUp, unrest: str | None) -> None:
        """See to it that servers are what they should be, and say which are not steady or not at rest."""
        engines = {each.name: (await each.describe()).metric_names for each in roster.present}
        for finding in check_drafting(self._list_present(roster), warm.counters, engines):
            self.progress.notice(finding)
        for arm, label in warm.unsteady.items():
            self.progress.notice(note("pace-unsteady", label=label, arm=arm))
        if unrest is not None:
            self.progress.notice(Finding.info("machine-busy", f"The machine did not become idle: {unrest}."))

    async def _time_readings(self, backend: Backend) -> float:
        """Return the seconds that each turn takes besides its requests."""
        clock, taken = asyncio.get_running_loop().time, []
        for _ in range(_TIMED):
            began = clock()
            await backend.wake()
            await backend.look()
            await backend.gauges()
            await backend.counters()
            await backend.rest()
            await self.read_device()
            taken.append(clock() - began)
        return median(taken)

    async def _begin(self, roster: Roster, estimate: TimeEstimate, budget: TimeBudget) -> None:
        """Settle what is measured, and write it down."""
        omissions: list[Omission] = []
        if budget.is_bounded and not self.resume:
            left_s = budget.turns_end - asyncio.get_running_loop().time()
            fitted, omissions = fit_plan(self._list_present(roster), estimate, _PLANNED * left_s)
            # Whose server failed stays in the plan: it is tried again when the run is continued.
            kept = {*(arm.name for arm in fitted.arms), *roster.left_out}
            whole = replace(fitted, arms=self.plan.arms, remembering=self.plan.remembering)
            self.plan = whole.keep_arms(kept)
        planned = [each for each in roster.present if each.name in {arm.name for arm in self.plan.arms}]
        servers = await self._describe(roster, planned)
        for finding in find_differences([each.name for each in planned], servers):
            if finding.severity is Severity.ERROR:
                self.progress.notice(finding)
        context = replace(self.context, servers=servers)
        if self.resume:
            self._go_on(context)
        else:
            self.directory.begin(self.plan, context)
            for expected in self.expected:
                self.directory.add(expected)
            for omission in self.omissions:
                self.directory.add(omission)
            for probe in self._probes:
                self.directory.add(probe)
        for line in describe_omissions(omissions):
            text = f"Left out: {line}."
            self.progress.notice(
                Finding.info("left-out", text, fix="Give more --minutes, or fewer workloads, loads or candidates.")
            )
        for omission in (*roster.omissions, *omissions):
            self.directory.add(omission)

    def _go_on(self, context: RunContext) -> None:
        """Go on with the run in the directory: what was left out there is going to be measured."""
        before = self.directory.read()
        _check_same(_identify(before.plan, before.context), _identify(self.plan, context))
        servers = {**context.servers, **before.context.servers}
        if servers.keys() > before.context.servers.keys():
            self.directory.begin(before.plan, replace(before.context, servers=servers))
        left_out = {each.candidate for each in before.omissions if each.candidate is not None}
        self._returned = left_out & context.servers.keys()
        self.directory.strike_omissions()

    async def _examine_differences(self, clients: Mapping[str, Client], budget: TimeBudget) -> None:
        """Ask both servers about outputs that differ, as many as the time allows."""
        left_s = math.inf if (end := budget.examination_end) is None else end - asyncio.get_running_loop().time()
        if self.line_up is not None and left_s < budget.start_s:
            return  # no other server would be up in time
        self._tracked.status("examining outputs that differ")
        run = self.directory.read()
        counted = set_aside_disturbed(run, get_thresholds(run))
        differences = list_differences(counted, clients)
        baseline = self.plan.arms[0].name
        if differences and baseline in clients and self.line_up is None:
            greedy = {each.label for each in run.conditions if each.temperature == 0}
            plain = [each for each in counted.answers if each.arm == baseline and each.condition in greedy]
            clock = asyncio.get_running_loop().time
            half = None if (end := budget.examination_end) is None else clock() + (end - clock()) / 3
            null: list[OutputDifference] = []
            whole = [each for each in plain if each.measured and each.error is None]
            await find_null(self.plan, whole, clients[baseline], ends_at=half, keep=null.append)
            # One of the null's, then one of the candidates', as far as the time allows.
            differences = [each for pair in zip_longest(null, differences) for each in pair if each is not None]
        await examine(
            differences,
            clients,
            ends_at=budget.examination_end,
            keep=self.directory.add,
            arm_by_arm=self.line_up is not None,
        )
        if self.line_up is None:
            await self._ask_again(clients, budget)

    async def _ask_again(self, clients: Mapping[str, Client], budget: TimeBudget) -> None:
        """Ask both servers again where outputs differ by more than rounding: what does not come back is chance."""
        run, baseline = self.directory.read(), self.plan.arms[0].name
        scale = find_rounding(run, get_thresholds(run))
        prompts = {(each.name, prompt.id): prompt for each in self.plan.workloads for prompt in each.prompts}
        flagged: dict[str, list[Divergence]] = {}
        for each in run.divergences:
            if each.candidate in clients and each.again is None and is_flagged(each, scale):
                flagged.setdefault(each.candidate, []).append(each)
        flagged.pop(baseline, None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(budget.examination_end):
                for each in chain.from_iterable(mine[:_ASKED_AGAIN] for mine in flagged.values()):
                    unit = (each.workload, each.prompt_id)
                    pair = [
                        (await answer_greedily(clients[arm], self.plan, [(each.workload, prompts[unit])]))[0]
                        for arm in (baseline, each.candidate)
                    ]
                    if pair[0] is not None and pair[1] is not None:
                        again = find_difference(unit, pair[0], pair[1]) is not None
                        self.directory.add(replace(each, again=again))


def _too_slow(pace: MachinePace, plan: RunPlan, start_s: float, *, left_s: float, spent_s: float) -> InvalidSetup:
    """Return what is said of a machine that cannot decide anything in the time."""
    names, loads = [each.name for each in plan.workloads], len(plan.conditions)
    quickest = min(names, key=lambda name: pace.expect_s([name], 1))
    one_s, all_s = pace.expect_s([quickest], 1), pace.expect_s(names, loads)

    def minutes(seconds: float) -> int:
        return math.ceil(_PLANNED_MORE * (spent_s + seconds) / 60)

    arms = len(plan.arms)
    more = [f"--minutes {minutes(start_s + 2 * one_s)} for one candidate on {quickest} alone"]
    if arms > 2 or len(names) * loads > 1:
        more.append(f"--minutes {minutes((arms - 1) * start_s + arms * all_s)} for all that you ask for")
    fewer = ["fewer loads"] * (loads > 1) + ["fewer workloads"] * (len(names) > 1) + ["a smaller --max-tokens"]
    start = f", and what has to start yet needs {start_s:.0f} s" if start_s else ""
    return InvalidSetup.because(
        "machine-too-slow",
        f"This machine is too slow for the time budget. Its first token takes {pace.first_s:.1f} s, then it writes "
        f"{1 / pace.per_token_s:.1f} tokens/s: {FEWEST_PROMPTS} prompts of {quickest} take each server about "
        f"{one_s / 60:.1f} min{start}. {left_s / 60:.1f} min are left.",
        fix=f"Give {', or '.join(more)}; or {', or '.join(fewer)}; or stop other work on this machine.",
    )


def _too_slow_to_start(name: str, took_s: float, start_s: float, starts: int, left_s: float) -> InvalidSetup:
    """Return the error for servers that cannot start within the budget."""
    needed_s = (1 + starts) * start_s
    slow = f", because others use its cores: it takes {start_s:.0f} s at least" if start_s > took_s else ""
    return InvalidSetup.because(
        "machine-too-slow",
        f"This machine is too slow for the time budget. {name} is not up after {took_s:.0f} s{slow}. The run "
        f"needs {1 + starts} starts, which take {needed_s / 60:.1f} min or more, and has {left_s / 60:.1f} min.",
        fix=f"Stop other work on this machine, or give --minutes {math.ceil(2 * needed_s / 60)} or more.",
    )


def _sort_by_promise(plan: RunPlan, backends: Sequence[Backend]) -> list[Backend]:
    """Return the servers: the baseline's, then those that need no weights and start soonest, then the others in the
    order that the guides give to their methods."""

    def rank(backend: Backend) -> tuple[bool, bool, int]:
        spec = next(arm.spec for arm in plan.arms if arm.name == backend.name)
        method = None if spec is None else find_method(spec.method)
        return spec is not None, method is None or method.has_weights, method.advice.rank if method is not None else 0

    return sorted(backends, key=rank)


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix timings of two machines, versions, servers or setups in one run."""
    for part, value in now.items():
        if part == "servers":
            # One that is up for the first time is new, and one that is not up now is not measured.
            value = {**before[part], **{arm: each for arm, each in value.items() if arm in before[part]}}
        if before[part] != value:
            found = list(_find_changes(part, before[part], value))
            raise refusal("other-context", names="; ".join(found[:_MOST_CHANGES]) or f"{part} changed")


def _find_changes(name: str, before: Any, now: Any) -> Iterator[str]:
    """Yield each value of a JSON tree that changed, by its path."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}, key=str):
            yield from _find_changes(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now:
        yield f"{name} changed from {_show(before)} to {_show(now)}"


def _show(value: Any) -> str:
    return "nothing" if value in (None, "", [], {}) else json.dumps(value, ensure_ascii=False)


def _identify(plan: RunPlan, context: RunContext) -> dict[str, Any]:
    """Return what must stay the same for the whole of a run: not addresses, nor how a start went."""
    return {
        "hardware": to_json(context.hardware),
        "software": to_json(context.software),
        "model": to_json(context.model),
        "servers": {arm: {"model": server.model, **server.version} for arm, server in context.servers.items()},
        "setups": {arm.name: to_json(arm.setup) for arm in plan.arms},
    }
