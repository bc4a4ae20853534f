"""Runs a server as a child process: starts it, watches it load, and always ends it with this process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from draftwise.backends import child_reaper
from draftwise.backends.url import UrlBackend
from draftwise.core import BackendError
from draftwise.machine.processes import count_cores, require_posix

_POLL_S = 0.1
_TAIL_LINES = 15
_LONGEST_LINE = 240
_END_S = child_reaper.GRACE_S + 15
"""Seconds after which a stop gives up on a process that survives SIGKILL (a hung driver)."""
_SEARCHES = 3
"""Number of pauses in which to search for processes that keep a core busy. The search ends if it finds none."""
_SAMPLES, _SAMPLE_S = 10, 0.02
"""Number of samples of a search, and the seconds between them."""
_MOST_RUNNING = 0.8
"""Share of samples above which a process counts as spinning. (On a busy machine it may wait, but is runnable.)"""
_CORES_FOR_EACH = 8
"""Cores per spinning process above which it disturbs no other process."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class LogTail:
    """Reads a growing log file piece by piece."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._rest = ""
        self.lines: list[str] = []
        """All of it so far; a progress bar counts as the lines it drew over each other."""

    def read(self) -> list[str]:
        """Return the lines added since the last call."""
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            self._offset += len(data)
            *new, self._rest = re.split(r"[\r\n]+", self._rest + _COLOR.sub("", data.decode(errors="replace")))
            self.lines += filter(None, new)
            return list(filter(None, new))
        return []


class ChildBackend(UrlBackend):
    """Base class of the servers that draftwise starts.

    Args:
        name: name of the arm.
        command: command that an operator would type to serve the same.
        log: file for the server's output.
        timeout_s: maximum seconds for loading.
        on_wait: called with the current phase while it loads, and with an empty text at the end.
    """

    least_cpu_s = 0.0
    """Lower bound on the serial processor seconds of a start, on a fast core with warm caches."""

    def __init__(
        self,
        name: str,
        *,
        command: str,
        log: Path,
        timeout_s: float = 600,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name, "http://127.0.0.1:0", command=command)
        self._log = log
        self._tail = LogTail(log)
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._doing = "launching its process"
        self._process: subprocess.Popen[bytes] | None = None
        self._spinning: tuple[int, ...] = ()
        self._searches = _SEARCHES

    async def start(self) -> None:
        """Start the server; return once it is healthy.

        Raises:
            InvalidSetup: the target, the config or the arguments are invalid.
            BackendError: the server ended or was not healthy in time. Gives the cause, if its log has it.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._launch()
        except TimeoutError:
            await self.stop()
            raise BackendError(self._failure(f"was not ready after {self._timeout_s:.0f} s")) from None
        except BaseException:
            await self.stop()
            raise
        finally:
            if self._on_wait is not None:
                self._on_wait("")

    async def stop(self) -> None:
        """Stop the server and wait until it is gone."""
        await super().stop()
        process, self._process, self._spinning = self._process, None, ()
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _END_S)

    def least_start_s(self) -> float:
        """Return a lower bound on the seconds of this start, from its share of the cores so far; 0 if unknown."""
        if self._process is None or sys.platform != "linux":
            return 0.0
        ran, waited = 0, 0
        for pid in child_reaper.find_descendants(self._process.pid):
            with suppress(OSError, ValueError):
                # Nanoseconds on a core, and ready but without one (kernel, Documentation/scheduler/sched-stats.rst).
                mine = [int(each) for each in Path(f"/proc/{pid}/schedstat").read_text().split()[:2]]
                ran, waited = ran + mine[0], waited + mine[1]
        return self.least_cpu_s * (1 + waited / ran) if ran else 0.0

    def complaint(self) -> str:
        """Return the last lines of the server's output."""
        self._tail.read()
        tail = "\n".join(f"  | {line[:_LONGEST_LINE]}" for line in self._tail.lines[-_TAIL_LINES:])
        return f"Its last lines ({self._log}):\n{tail}\nTry it alone: {self.command}"

    async def rest(self) -> None:
        """Suspend the server's processes that keep a core busy while idle.

        vLLM's workers poll for their next step: without end up to 0.17.1, for a second since (`SpinCondition` in
        shm_broadcast.py). With few cores, they would slow the next server's measurement.
        """
        if self._process is None or sys.platform != "linux":
            return
        if not self._spinning and self._searches > 0:
            self._searches -= 1
            self._spinning = await self._find_spinning()
        if self._spinning and self._needs_its_cores():
            _signal_all(self._spinning, signal.SIGSTOP)

    async def wake(self) -> None:
        """Resume the suspended processes."""
        _signal_all(self._spinning, signal.SIGCONT)

    def _needs_its_cores(self) -> bool:
        """Return whether others miss the cores that it keeps busy.

        Where they do not, it had better not be stopped: a GPU worker's watchdog (NCCL's) wants to see it move.
        """
        return len(self._spinning) * _CORES_FOR_EACH > count_cores()

    async def _launch(self) -> None:
        """Start the process and return when it is healthy; `start` cleans up when this raises."""
        raise NotImplementedError

    def _watch(self, lines: Sequence[str]) -> str:
        """Take in the newest lines of the log; return what the server is doing."""
        return lines[-1] if lines else self._doing

    def _explain(self, status: int) -> Exception:
        """Return the error for a server that has ended by itself."""
        return BackendError(self._failure(f"ended with status {status}"))

    def _spawn(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        require_posix("draftwise starts servers")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._tail = LogTail(self._log)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, child_reaper.__file__, *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment),
            )

    async def _wait_for_health(self) -> None:
        self._open()
        while True:
            with suppress(httpx.HTTPError):
                if (await self.client.get("/health")).is_success:
                    return
            await self._wait()

    async def _wait(self) -> None:
        """Let a moment pass; raise when the server has ended."""
        assert self._process is not None
        status = self._process.poll()
        self._doing = self._watch(self._tail.read())
        if status is not None:
            raise self._explain(status)
        if self._on_wait is not None:
            self._on_wait(self._doing)
        await asyncio.sleep(_POLL_S)

    def _failure(self, what: str) -> str:
        return f"{self.name}: the server {what}. {self.complaint()}"

    async def _find_spinning(self) -> tuple[int, ...]:
        """Return those of its processes with a thread that goes on running although nothing was asked of them.

        The first, which talks HTTP, is never among them: it goes on to answer.
        """
        assert self._process is not None
        family = child_reaper.find_descendants(self._process.pid)[1:]
        seen = Counter[int]()
        for _ in range(_SAMPLES if family else 0):
            seen.update(pid for pid in family if _is_running(pid))
            await asyncio.sleep(_SAMPLE_S)
        return tuple(pid for pid in family if seen[pid] >= _MOST_RUNNING * _SAMPLES)


def _is_running(pid: int) -> bool:
    """Return whether a thread of a process runs or could run: its state is R (proc(5))."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if stat.read_text(errors="replace").rpartition(")")[2].split()[0] == "R":
                return True
    return False


def _signal_all(pids: Sequence[int], which: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, which)
