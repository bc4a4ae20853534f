"""The servers that a session goes on with: which have to come up, and how long it waits for those that break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median
from typing import TypeVar

from draftwise.backends import Backend
from draftwise.core import BackendError, Finding, InvalidSetup, Omission, Progress, Prompt
from draftwise.core.progress import check_stop
from draftwise.knowledge.messages import note, text_of
from draftwise.measure.load.client import Client

_STOP_POLL_S = 1.0
"""Seconds between checks whether a waiting session should stop."""
T = TypeVar("T")
Failure = BackendError | InvalidSetup


@dataclass(slots=True, kw_only=True)
class Roster:
    """The servers of a session before anything is measured.

    Args:
        backends: servers, the baseline's first.
        progress: receives each candidate left out; may ask to stop starting servers.
        may_leave_out: whether the session continues without a candidate whose server fails.
        is_one_at_a_time: whether the servers are a line-up, which itself stops a server that fails.
        starts_at_once: number of servers that start together, since they share cores. None: all.
        returns: waits for servers that fail to come back. None: a failure is final.
    """

    backends: Sequence[Backend]
    progress: Progress
    may_leave_out: bool = True
    is_one_at_a_time: bool = False
    starts_at_once: int | None = None
    returns: Returns | None = None
    clients: dict[str, Client] = field(default_factory=dict, init=False)
    """Clients of the servers that are up, by arm."""
    starts: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds that servers took to start, by arm."""
    _failures: dict[str, Failure] = field(default_factory=dict, init=False)

    @property
    def left_out(self) -> frozenset[str]:
        """Candidates that the session continues without."""
        return frozenset(self._failures)

    @property
    def present(self) -> list[Backend]:
        """Servers that have not failed."""
        return [each for each in self.backends if each.name not in self._failures]

    @property
    def omissions(self) -> list[Omission]:
        """Omissions due to failed servers."""
        reason = "its server failed before the measurement began"
        return [
            Omission(what=f"candidate {name}", reason=reason, candidate=name, error=str(error))
            for name, error in self._failures.items()
        ]

    async def attempt(self, backend: Backend, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run a server's work and return its result; None if it fails and the session continues without the server.

        If the server fails and comes back, the work runs again.

        Raises:
            BackendError, InvalidSetup: the baseline or the last candidate failed, or no candidate may be left out.
        """
        while True:
            try:
                return await work()
            except (BackendError, InvalidSetup) as broken:
                error: Failure = broken
            client = self.clients.get(backend.name)
            if self.returns is None or client is None or isinstance(error, InvalidSetup):
                await self._leave_out(backend, error)
                return None
            try:
                await self.returns.wait(client, error, "the first look")
            except BackendError as gone:
                await self._leave_out(backend, gone)
            if backend.name not in self.clients:
                return None

    async def start(
        self, group: Sequence[Backend], *, ends_at: float, check: Callable[[], None] = lambda: None
    ) -> None:
        """Start servers, as many in parallel as the cores allow. Return when each is up or left out.

        Args:
            group: backends to start, the most promising first.
            ends_at: event-loop time after which to wait for no candidate if another one is up.
            check: called every second; raises to give up.

        Raises:
            BackendError, InvalidSetup: see `attempt`.
            Stopped: `progress` asked to stop.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        turn = asyncio.Semaphore(self.starts_at_once or len(group))
        starting = {
            asyncio.create_task(self.attempt(each, partial(self._start_in_turn, each, turn, ends_at))): each
            for each in group
        }
        try:
            while starting:
                left_s = ends_at - clock()
                timeout = min(left_s, _STOP_POLL_S) if left_s > 0 else _STOP_POLL_S
                done, _ = await asyncio.wait(starting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                check_stop(self.progress)
                if not done:
                    check()
                for task in done:
                    del starting[task]
                    task.result()
                if clock() >= ends_at and self._can_do_without(starting.values()):
                    late = list(starting.values())
                    await _cancel(starting)
                    starting.clear()
                    for each in late:
                        await self._leave_out(each, _too_late(each, clock() - began))
        finally:
            await _cancel(starting)

    async def _start_in_turn(self, backend: Backend, turn: asyncio.Semaphore, ends_at: float) -> None:
        """Start a server when it is its turn; fail at once where the time is too short for it, and others are up."""
        clock = asyncio.get_running_loop().time
        async with turn:
            began = clock()
            usual_s = median(self.starts.values()) if self.starts else 0.0
            if self.may_leave_out and len(self.starts) > 1 and began + usual_s > ends_at:
                left_s = max(0.0, ends_at - began)
                raise BackendError(text_of("arm-not-started", name=backend.name, usual_s=usual_s, left_s=left_s))
            await backend.start()
            self.starts[backend.name] = clock() - began

    async def greet(self, group: Iterable[Backend], hello: Prompt, *, salt: str) -> None:
        """Send the simplest request to each server that is up, and keep its client.

        Raises:
            BackendError: see `attempt`.
        """
        for each in group:
            if each.name not in self._failures:
                client = await self.attempt(each, partial(Client.greet, each, hello, salt=salt))
                if client is not None:
                    self.clients[each.name] = client

    def _can_do_without(self, late: Iterable[Backend]) -> bool:
        names = {each.name for each in late}
        baseline, *candidates = self.backends
        others = [each for each in candidates if each.name not in names | self.left_out]
        return self.may_leave_out and baseline.name not in names and bool(others)

    async def _leave_out(self, backend: Backend, error: Failure) -> None:
        baseline, *candidates = self.backends
        if backend.name == baseline.name or not self.may_leave_out:
            raise error
        self._failures[backend.name] = error
        self.clients.pop(backend.name, None)
        if len(self._failures) == len(candidates):
            raise _join(list(self._failures.values()))
        if not self.is_one_at_a_time:
            await backend.stop()
        self.progress.notice(note("left-out", name=backend.name, error=error))


def _too_late(backend: Backend, seconds: float) -> BackendError:
    text = f"{backend.name}: the server was not up after {seconds:.0f} s. {backend.complaint()}"
    return BackendError(f"{text}\nGive more --minutes if it needs longer to start.")


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in (tasks := list(tasks)):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _join(failures: Sequence[Failure]) -> Failure:
    """Return one error for those of all candidates."""
    if len(failures) == 1:
        return failures[0]
    refused = [each for each in failures if isinstance(each, InvalidSetup)]
    if len(refused) == len(failures):
        return InvalidSetup(chain.from_iterable(each.findings for each in refused))
    return BackendError("\n".join(("No candidate's server could be used.", *map(str, failures))))


_AWAY_S, _AWAY, _LEAST_S, _POLL_S = 180.0, 0.25, 30.0, 1.0
"""Longest wait for a failed server in seconds, the same as a share of the time left, the minimum wait, and the seconds
between checks."""
_MOST_RETURNS = 3
"""Number of times that a server may fail and come back."""
_MOST_BREAKS = 30
"""Connections that may break while the server stays up, for example in a proxy in front of it."""


@dataclass(slots=True, kw_only=True)
class Returns:
    """Waits for failed servers that draftwise did not start, in case an operator restarts them.

    Args:
        warm: warms up an arm's server after its return.
        left_s: returns the seconds left for measuring.
        keep: receives a record of the interruption.
        progress: receives notes about the wait.
    """

    warm: Callable[[str], Awaitable[None]]
    left_s: Callable[[], float]
    keep: Callable[[Omission], None]
    progress: Progress
    _count: Counter[str] = field(default_factory=Counter, init=False)
    _breaks: Counter[str] = field(default_factory=Counter, init=False)

    async def wait(self, client: Client, error: BackendError, what: str) -> None:
        """Wait until a failed server answers again with the same model and is warm.

        Args:
            client: client of the server.
            error: its failure.
            what: the interrupted work, in words.

        Raises:
            BackendError: `error`, if the server does not come back.
        """
        clock, arm = asyncio.get_running_loop().time, client.backend.name
        began, why = clock(), str(error).partition("\n")[0]
        was_there = await _is_there(client)
        count, most = (self._breaks, _MOST_BREAKS) if was_there else (self._count, _MOST_RETURNS)
        count[arm] += 1
        if count[arm] > most:
            raise BackendError(f"{error}\nIt came back {most} times before: see why it ends.") from error
        left_s = max(0.0, self.left_s())
        patience_s = min(_AWAY_S, left_s, max(_AWAY * left_s, _LEAST_S))
        if not was_there:
            text = f"its server failed: {why} Waiting up to {patience_s:.0f} s for it. Ctrl-C keeps all measurements."
            self.progress.notice(Finding.warning("server-away", text, where=arm, fix="Start it again, unchanged."))
        while clock() < began + patience_s:
            check_stop(self.progress)
            waited = f"{clock() - began:.0f} of at most {patience_s:.0f} s"
            self.progress.status(f"waiting for the server of {arm} to come back, {waited}")
            with suppress(BackendError):
                if await _is_there(client):
                    await self.warm(arm)
                    text = f"its server failed and answered again after {clock() - began:.0f} s: {why}"
                    if was_there:
                        text = "its connection broke, and its server answered again at once"
                    if not was_there or count[arm] == 1:
                        self.progress.notice(Finding.warning("server-came-back", text, where=arm))
                    first = f"the first attempt at {what} of {arm}"
                    self.keep(Omission(what=first, reason=f"{text}; the turn was repeated"))
                    return
            await asyncio.sleep(_POLL_S)
        raise BackendError(f"{error}\nIt did not come back within {patience_s:.0f} s.") from error


async def _is_there(client: Client) -> bool:
    """Return whether a server answers, as the same model."""
    with suppress(BackendError):
        return (await client.backend.describe()).model == client.model
    return False
