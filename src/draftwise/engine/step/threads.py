"""Chooses the number of threads of a step: one per core, and fewer while other processes use cores.

A step's threads wait for each other dozens of times. A thread without a core delays each wait by a scheduler slice of
milliseconds, longer than a small model's whole step. With one of two cores taken, two threads decode at a tenth of
their speed, and one thread at more than half. So decoding then uses one thread fewer. A test thread finds out whether
there is a core for one more.

Long prompts always get all threads. A row has the same bits on any number of threads, except in bfloat16 products with
hundreds of rows, and a prompt's answer must not depend on the machine's load.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

import torch

from draftwise.machine.processes import count_cores

_WINDOW_S = 0.05
"""Seconds over which waiting adds up: many scheduler slices (about 3 ms each)."""
_WAITS = 0.1
"""Share of a window above which a thread counts as waiting for a core. The server's process, and a client on the same
machine, cause less."""
_LOST = 0.4
"""Waiting, in cores, above which there are too many threads. A thread that shares its core with a busy process waits
half the time."""
_ROOM = 0.65
"""Number of idle cores above which one more thread fits."""
_WAITS_ALREADY = 0.25
"""Share of waiting above which no extra thread is tried without an idle core."""
_TRIAL_S = 0.03
"""CPU seconds of a trial: ten scheduler slices."""
_GIVES_WAY = 0.8
"""Share of a trial with a core above which a step gets one more thread. An equal process leaves half."""
_SOON_S = 1.0
"""A trial failed if its thread is removed within this many seconds, or at the first look."""
_MOST_ROWS = 128
"""Maximum prompt rows for which a row's bits do not depend on the number of threads (oneDNN 3.12: 200)."""


class Cores(Protocol):
    """Operating-system readings of this process and its cores, in seconds since a fixed time."""

    def waits(self) -> Mapping[str, float]:
        """Return how long each thread of this process was runnable without a core."""

    def idle_s(self) -> float:
        """Return the total idle time of the cores that this process may use."""

    def cpu_s(self) -> float:
        """Return the CPU time of this process."""

    def try_core(self) -> Callable[[], float | None]:
        """Run one more thread briefly. Return a function that gives its share of time with a core; None until done."""


class Governor:
    """Decides how many threads fit on the cores left by other processes.

    Args:
        most: threads on a quiet machine.

    Attributes:
        threads: the decision, 1 to `most`.
    """

    def __init__(self, most: int, cores: Cores, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = self.threads = most
        self._cores, self._clock = cores, clock
        self._window = self._pause = _Window(clock(), cores)
        """Start of the counts of waiting and of idle cores."""
        self._for_room = _Patience(0.1, 4.0)
        self._without_room = _Patience(0.5, 8.0)  # what keeps the cores busy may be of lower priority and give way
        self._tried = self._for_room
        """Required wait before the last additional thread."""
        self._trial: Callable[[], float | None] | None = None
        """Running trial with a test thread: a real step with one thread too many takes twenty times as long."""
        self._raised_s = self._reduced_s = -math.inf
        self._is_first_look = False

    def update(self) -> int:
        """Update the decision if a window has passed, and return it."""
        now = self._clock()
        if self.threads > 1 and now - self._window.begun_s >= _WINDOW_S:
            window, self._window = self._window, _Window(now, self._cores)
            self._is_first_look = window.begun_s == self._raised_s  # however long its step took
            lost = window.lost_cores(self._window)
            if lost > _LOST:
                self._reduce(by=max(1, round(lost)))
        if self.threads < self.most and now - self._pause.begun_s >= self._for_room.seconds:
            pause, self._pause = self._pause, _Window(now, self._cores)
            if pause.free_cores(self._pause, self.threads) > _ROOM:
                self._raise(self._for_room)
            elif self._trial is not None:
                self._end_trial(self._trial(), now)
            elif (
                now - self._reduced_s >= self._without_room.seconds
                and pause.share_of_waiting(self._pause) < _WAITS_ALREADY
            ):
                self._trial = self._cores.try_core()
        return self.threads

    def _end_trial(self, had_core: float | None, now: float) -> None:
        if had_core is None:
            return
        self._trial = None
        if had_core > _GIVES_WAY:
            self._raise(self._without_room)
        else:
            self._without_room.lengthen()
            self._reduced_s = now

    def _reduce(self, *, by: int) -> None:
        self.threads = max(1, self.threads - by)
        self._pause, self._reduced_s = self._window, self._window.begun_s
        if self._reduced_s - self._raised_s < _SOON_S or self._is_first_look:
            self._tried.lengthen()
        else:
            self._for_room.reset()
            self._without_room.reset()

    def _raise(self, after: _Patience) -> None:
        self.threads += 1
        self._trial = None  # what it says is of a machine that may have changed by the time it is asked
        self._window, self._raised_s, self._tried = self._pause, self._pause.begun_s, after


class _Patience:
    """How long to wait before one more thread is tried: twice as long after each that was tried in vain."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self.seconds, self._shortest_s, self._longest_s = shortest_s, shortest_s, longest_s

    def lengthen(self) -> None:
        self.seconds = min(2 * self.seconds, self._longest_s)

    def reset(self) -> None:
        self.seconds = self._shortest_s


class _Window:
    """Readings at the beginning of a stretch of time; the next ones end it."""

    def __init__(self, begun_s: float, cores: Cores) -> None:
        self.begun_s = begun_s
        self._waits, self._idle_s, self._cpu_s = cores.waits(), cores.idle_s(), cores.cpu_s()

    def lost_cores(self, end: _Window) -> float:
        """Return the average number of threads waiting for a core, without those that hardly waited."""
        shares = (wait / (end.begun_s - self.begun_s) for wait in self._grown_waits(end))
        return sum(share for share in shares if share > _WAITS)

    def free_cores(self, end: _Window, threads: int) -> float:
        """Return the average number of idle cores, minus those of `threads` threads, which may have rested."""
        passed_s = end.begun_s - self.begun_s
        rested_s = threads * passed_s - (end._cpu_s - self._cpu_s) - sum(self._grown_waits(end))
        return (end._idle_s - self._idle_s - max(rested_s, 0)) / passed_s

    def share_of_waiting(self, end: _Window) -> float:
        """Return the share of the threads' runnable time without a core."""
        waited_s, ran_s = sum(self._grown_waits(end)), end._cpu_s - self._cpu_s
        return waited_s / (waited_s + ran_s) if waited_s else 0.0

    def _grown_waits(self, end: _Window) -> Iterator[float]:
        return (wait - self._waits[thread] for thread, wait in end._waits.items() if thread in self._waits)


class LinuxCores:
    """Readings from /proc. Files stay open, because opening costs microseconds.

    Raises:
        OSError: the system does not provide them.
    """

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}
        self._trying = ""
        """The thread of the last trial, which is no thread of a step."""
        self._stat = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._names = frozenset(f"cpu{core}".encode() for core in os.sched_getaffinity(0))
        Path("/proc/self/schedstat").read_bytes()

    def __del__(self) -> None:
        for file in (self._stat, *self._threads.values()):
            os.close(file)

    def waits(self) -> dict[str, float]:
        """See `Cores`: the second number of /proc/self/task/*/schedstat, in nanoseconds (sched-stats.rst)."""
        names = set(os.listdir("/proc/self/task")) - {self._trying}
        for ended in self._threads.keys() - names:
            os.close(self._threads.pop(ended))
        waits = {}
        for name in names:
            with suppress(OSError):  # the thread has ended in between
                if name not in self._threads:
                    self._threads[name] = os.open(f"/proc/self/task/{name}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                waits[name] = int(os.pread(self._threads[name], 128, 0).split()[1]) / 1e9
        return waits

    def idle_s(self) -> float:
        """See `Cores`: idle and iowait of /proc/stat, in clock ticks (proc(5))."""
        rows = (line.split() for line in os.pread(self._stat, 2**20, 0).splitlines() if line.startswith(b"cpu"))
        ticks = sum(int(row[4]) + int(row[5]) for row in rows if row[0] in self._names)
        return ticks / os.sysconf("SC_CLK_TCK")

    def cpu_s(self) -> float:
        """See `Cores`."""
        return time.process_time()

    def try_core(self) -> Callable[[], float | None]:
        """See `Cores`: the first two numbers of the thread's schedstat, time with a core and time without."""
        found: list[float] = []

        def compute() -> None:
            self._trying = str(threading.get_native_id())
            began_s, data = time.monotonic(), bytes(2**20)
            while time.thread_time() < _TRIAL_S and time.monotonic() - began_s < 10 * _TRIAL_S:
                hashlib.sha256(data)  # without the lock of the interpreter
            ran, waited = map(int, Path(f"/proc/self/task/{self._trying}/schedstat").read_text().split()[:2])
            found.append(ran / (ran + waited))

        threading.Thread(target=compute, name="trial of a core", daemon=True).start()
        return lambda: found[0] if found else None


class StepThreads:
    """Runs steps with the number of threads from the governor.

    Attributes:
        most_rows: a step with more prompt rows gets all threads.
    """

    most_rows = _MOST_ROWS

    def __init__(self, governor: Governor) -> None:
        self._governor = governor

    def computing(self, *, prompt_rows: int, taken: int = 0) -> AbstractContextManager[None]:
        """Return a context manager for computing a step with this many prompt rows. It restores torch's threads
        afterwards. `taken` is the number of cores used by other threads of this process."""
        threads = min(self._governor.update(), max(1, self._governor.most - taken))
        return nullcontext() if threads == self._governor.most or prompt_rows > self.most_rows else _limited(threads)


@contextmanager
def _limited(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_threads(device: torch.device) -> StepThreads | None:
    """Set torch's threads to this process's cores, and return their governor.

    OMP_NUM_THREADS takes precedence.

    Returns:
        None on a GPU, with one thread, or if the system does not report waits for a core.
    """
    if device.type != "cpu":
        return None
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), count_cores()))
    if torch.get_num_threads() == 1:
        return None
    try:
        return StepThreads(Governor(torch.get_num_threads(), LinuxCores()))
    except (OSError, AttributeError):
        return None
