"""Runs one server at a time: starts the requested one and stops the previous one."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import httpx

from draftwise.backends.backend import Exchange, Piece, ServerInfo
from draftwise.backends.url import UrlBackend
from draftwise.core import BackendError, Counters, InvalidSetup, ServerLoad, cause_of
from draftwise.knowledge.messages import text_of
from draftwise.knowledge.metrics import counts_drafts

_POLL_S = 1.0
_PLACE = "{arm}"
_TAIL = 600
"""Number of characters of a failed command's output to show."""


class Replace(Protocol):
    """How one server replaces another."""

    async def bring_up(self, backend: UrlBackend, before: UrlBackend | None) -> None:
        """Replace a server by another one, or start the first; return once it answers.

        Raises:
            BackendError: it does not answer. The message says what is up, if known.
        """

    async def leave(self, last: UrlBackend | None) -> None:
        """Stop the last server, or bring back the one that should stay up."""


class StartAndStop:
    """Line-up of servers that draftwise starts."""

    async def bring_up(self, backend: UrlBackend, before: UrlBackend | None) -> None:
        """Stop one server, then start the other: both may need the same GPU."""
        if before is not None:
            await before.stop()
        await backend.start()

    async def leave(self, last: UrlBackend | None) -> None:
        """Stop the last server."""
        if last is not None:
            await last.stop()


class LineUp:
    """The servers of a run, one of which is up at a time.

    Args:
        replace: replaces one server by another. None: draftwise starts and stops them.

    Attributes:
        warm: called with the name of a server that is up again, before other requests.
    """

    def __init__(self, replace: Replace | None = None) -> None:
        self._replace = StartAndStop() if replace is None else replace
        self._up: UrlBackend | None = None
        self._known: set[str] = set()
        self._lock = asyncio.Lock()
        self.warm: Callable[[str], Awaitable[None]] | None = None

    def is_up(self, backend: UrlBackend) -> bool:
        """Return whether a server is up."""
        return self._up is backend

    async def bring_up(self, backend: UrlBackend) -> None:
        """Bring a server up; warm it if it was up before."""
        if self.is_up(backend):
            return
        async with self._lock:
            if self.is_up(backend):
                return
            before, self._up = self._up, None
            await self._replace.bring_up(backend, before)
            self._up = backend
        if backend.name in self._known and self.warm is not None:
            await self.warm(backend.name)
        self._known.add(backend.name)

    async def leave(self) -> None:
        """End the run's use of the servers. Safe to call twice."""
        async with self._lock:
            last, self._up = self._up, None
            if self._known:
                self._known.clear()
                await self._replace.leave(last)


class OneAtATime:
    """A server of a line-up as a backend."""

    def __init__(self, server: UrlBackend, line_up: LineUp) -> None:
        self.server = server
        self.name = server.name
        self.command = server.command
        self._line_up = line_up
        self._info: ServerInfo | None = None

    @property
    def url(self) -> str:
        """Base URL; valid while the server is up."""
        return self.server.url

    @property
    def client(self) -> httpx.AsyncClient:
        """HTTP client with the server as base URL; open while it is up."""
        return self.server.client

    def now(self) -> float:
        """Return the time in seconds, on the clock of this server's answers."""
        return self.server.now()

    def complaint(self) -> str:
        """Return a hint on where to look if the connection broke."""
        return self.server.complaint()

    def least_start_s(self) -> float:
        """Return a lower bound on the seconds of the server's current start; 0 if unknown."""
        return self.server.least_start_s()

    async def start(self) -> None:
        """Bring the server up, and record what it reports about itself."""
        await self.describe()

    async def stop(self) -> None:
        """End the run's use of all servers in the line-up."""
        await self._line_up.leave()

    async def describe(self) -> ServerInfo:
        """Return what the server reported when it was first up."""
        if self._info is None:
            await self.wake()
            self._info = await self.server.describe()
        return self._info

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body; return the answer with the arrival time of each piece.

        Raises:
            BrokenStream: the connection could not be made or broke.
        """
        await self.wake()
        return await self.server.stream(path, body, received)

    async def counters(self) -> Counters:
        """Return the counters of its /metrics, which restart at zero each time it comes up."""
        await self.wake()
        return await self.server.counters()

    async def gauges(self) -> ServerLoad:
        """Return the server's load."""
        await self.wake()
        return await self.server.gauges()

    async def look(self) -> tuple[ServerLoad, Counters]:
        """Return gauges and counters from a single reading of /metrics."""
        await self.wake()
        return await self.server.look()

    async def rest(self) -> None:
        """Use as little of the machine as possible, if up."""
        if self._line_up.is_up(self.server):
            await self.server.rest()

    async def wake(self) -> None:
        """Bring the server up and end its rest."""
        await self._line_up.bring_up(self.server)
        await self.server.wake()


def no_proof(name: str, command: str, seconds: float, seen: str) -> BackendError:
    """Return the error for a switch without proof that it took place."""
    return BackendError(text_of("switch-unproven", name=name, command=command, seconds=seconds, seen=seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCommand:
    """Brings servers up with a command such as `kubectl patch ... {arm}`, run without a shell.

    The metrics page proves the switch: a new process start time or reset counters, and draft counters exactly if the
    server should speculate.

    Args:
        command: command; `{arm}` stands for the arm's name.
        baseline: name of the arm that does not speculate.
        stay: name of the arm to leave up in the end.
        patience_s: maximum seconds for a replacement.
    """

    command: str
    baseline: str
    stay: str
    patience_s: float = 900.0

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise _no_command(f"{self.command!r} is no command ({error}).") from None
        if not any(_PLACE in word for word in words):
            raise _no_command(f"{self.command!r} does not say where the arm's name goes.")

    async def bring_up(self, backend: UrlBackend, before: UrlBackend | None) -> None:
        """Run the command for an arm; return once its server answers.

        Raises:
            BackendError: the command failed, or nothing proved in time that the server was replaced.
        """
        known = None if before is None else await before.find_life()
        last = None if before is None else before.name
        if before is not None:
            await before.stop()
        await self._run(backend.name, last)
        await self._wait(backend, known)

    async def leave(self, last: UrlBackend | None) -> None:
        """Bring back the arm that should stay up."""
        name = None if last is None else last.name
        if last is not None:
            await last.stop()
        if name != self.stay:
            await self._run(self.stay, name)

    async def _run(self, arm: str, last: str | None) -> None:
        words = [word.replace(_PLACE, arm) for word in shlex.split(self.command)]
        state = f"The server that was up last is {last}'s." if last else "No arm had been brought up before."
        try:
            child = await asyncio.create_subprocess_exec(
                *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise BackendError(f"--switch: {words[0]!r} cannot be run ({cause_of(error)}). {state}") from None
        output, _ = await child.communicate()
        if child.returncode:
            tail = output.decode(errors="replace").strip()[-_TAIL:]
            text = f"--switch: {shlex.join(words)!r} ended with status {child.returncode}: {tail}"
            raise BackendError(f"{text}\n{state} All measurements are kept.")

    async def _wait(self, backend: UrlBackend, known: tuple[float | None, int | None] | None) -> None:
        clock = asyncio.get_running_loop().time
        ends_at, seen, steady = clock() + self.patience_s, "it does not answer", False
        while clock() < ends_at:
            with suppress(BackendError):
                await backend.start()
                seen = await self._find_doubt(backend, known)
                if not seen and steady:
                    return
                steady = not seen
            await asyncio.sleep(_POLL_S)
        await backend.stop()
        raise no_proof(backend.name, self.command, self.patience_s, seen or "it did not stay up")

    async def _find_doubt(self, backend: UrlBackend, known: tuple[float | None, int | None] | None) -> str:
        """Return what speaks against a server being the one that was asked for; empty where nothing does."""
        info, (started, tokens) = await backend.describe(), await backend.find_life()
        if info.metric_names is None:
            return "it shows no counters (name their page with --metrics-url)"
        speculates, should = await backend.has_draft_counters(), backend.name != self.baseline
        if counts_drafts(info.metric_names) and speculates is not should:
            return f"its /metrics has {'' if speculates else 'no '}counters of drafts"
        if known is None:
            return ""
        began_anew = started > known[0] if started and known[0] else (tokens or 0) < (known[1] or 0)
        return "" if began_anew else "its process and its counters are those of before"


def _no_command(text: str) -> InvalidSetup:
    fix = "Example: --switch './switch.sh {arm}', where the script ends when the roll-out has."
    return InvalidSetup.because("not-a-command", text, where="--switch", fix=fix)
