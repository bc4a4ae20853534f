"""One session of a run: servers up, warm-ups, everything that is missing measured, servers down."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.backends import Backend
from draftwise.core import InvalidSetup, RunContext, RunPlan
from draftwise.decide.comparison.cell import ALL, make_cells
from draftwise.measure.context import describe_server
from draftwise.measure.divergences import examine
from draftwise.measure.experiment import DeviceReader, Experiment, Progress, no_device
from draftwise.measure.load.client import Client
from draftwise.measure.sweep import Sweep
from draftwise.measure.warm_up import Pace, expect_seconds, fit_prompts, greet_all, measure_lengths, warm_up
from draftwise.runs import RunDirectory

__all__ = ["Announce", "Session"]

Announce = Callable[[RunPlan, Pace, float], None]
"""Called before the first measured request: with the plan, the seconds per output token of each arm under each
condition, and the seconds that all of it will take."""

_MOST_EXAMINED = 40
"""Differing prompts per comparison that both servers are asked about."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Measures a plan into a directory; whatever ends it, the servers are down and everything measured is on disk.

    Args:
        backends: one per arm, in the plan's order.
        context: hardware, software and model; the servers add their records.
        read_device: reads the state of the machine after every turn.
        processes: of the load generator; None for as many as the load needs.
        resume: whether the directory holds the plan's earlier turns.
        budget_s: time for which a new run chooses its number of prompts; None takes them all.
        search_s: time from the first measured request after which no load is added in search of a crossover.
        announce: called with what is going to be measured, and how long that takes.
    """

    plan: RunPlan
    backends: Sequence[Backend]
    directory: RunDirectory
    context: RunContext
    progress: Progress
    announce: Announce
    read_device: DeviceReader = no_device
    processes: int | None = None
    resume: bool = False
    budget_s: float | None = None
    search_s: float = math.inf

    async def run(self) -> None:
        """Measure.

        Raises:
            BackendError: a server failed.
            InvalidSetup: the run is resumed on other hardware or software.
        """
        try:
            await _together([backend.start() for backend in self.backends])
            clients = await greet_all(self.backends, self.plan, salt=secrets.token_hex(4))
            await self._begin(clients, await warm_up(clients, self.plan))
            self.directory.reserve()
            await asyncio.gather(*(backend.rest() for backend in self.backends))
            experiment = Experiment(
                plan=self.plan,
                directory=self.directory,
                clients=clients,
                progress=self.progress,
                read_device=self.read_device,
                processes=self.processes,
            )
            try:
                await Sweep(experiment=experiment, ends_at=time.monotonic() + self.search_s).run()
            finally:
                experiment.close()
            await asyncio.gather(*(backend.wake() for backend in self.backends))
            await self._examine_differences(clients)
        finally:
            self.directory.close()
            await asyncio.gather(*(backend.stop() for backend in self.backends), return_exceptions=True)

    async def _begin(self, clients: Mapping[str, Client], pace: Pace) -> None:
        """Settle what is measured, write it down and say so."""
        shares = await measure_lengths(clients[self.plan.arms[0].name], self.plan)
        servers = {backend.name: await describe_server(backend) for backend in self.backends}
        context = replace(self.context, servers=servers)
        if self.resume:
            before = self.directory.read()
            _check_same(_identify(before.plan, before.context), _identify(self.plan, context))
        else:
            if self.budget_s is not None:
                self.plan = fit_prompts(self.plan, pace, shares, self.budget_s)
            self.directory.begin(self.plan, context)
        self.announce(self.plan, pace, expect_seconds(self.plan, pace, shares))

    async def _examine_differences(self, clients: Mapping[str, Client]) -> None:
        run = self.directory.read()
        known = {(each.candidate, each.condition, each.workload, each.prompt_id) for each in run.divergences}
        for cell in make_cells(run):
            if cell.workload != ALL and cell.differences is not None:
                for difference in cell.differences[:_MOST_EXAMINED]:
                    if (cell.candidate, cell.condition.label, *difference.unit) not in known:
                        view = await examine(difference, clients[cell.baseline], clients[cell.candidate])
                        self.directory.add_divergence(view)


async def _together(starting: Sequence[Any]) -> None:
    """Await all; when one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in starting:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix timings of two machines, versions, servers or setups in one run."""
    for part, value in now.items():
        if before[part] != value:
            raise InvalidSetup.because(
                "other-context",
                f"{part}: now {value}, when the run began {before[part]}.",
                where="--resume",
                fix="Timings of both do not compare: start a new run with --out.",
            )


def _identify(plan: RunPlan, context: RunContext) -> dict[str, Any]:
    """Return what must stay the same for the whole of a run: not addresses, nor how a start went."""
    return {
        "hardware": context.hardware.to_dict(),
        "software": context.software.to_dict(),
        "model": context.model.to_dict(),
        "servers": {arm: (server.model, dict(server.version)) for arm, server in context.servers.items()},
        "setups": {arm.name: arm.setup for arm in plan.arms},
    }
