"""Verbs that take minutes, run in the background: started, asked for their state, stopped, asked for a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

from draftwise.core import Finding, InvalidRequest
from draftwise.core.progress import Progress, Silent

_MOST_KEPT = 20
"""Jobs that are over and still known."""
_MOST_NOTICES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How far a job is."""

    job: str
    state: str
    """`running`, `stopping`, `finished`, or `failed`: then the result is an error."""
    doing: str
    """The current phase, in words."""
    done: int
    """Steps that are done."""
    planned: int | None
    """Steps of the whole work; null until that is known."""
    seconds: float
    """Since it was started."""
    seconds_left: float | None
    notices: tuple[Finding, ...]
    """What was found on the way, the newest last."""


class Job(Silent):
    """One run of a verb on a thread of its own; the verb reports to it."""

    def __init__(self, name: str, run: Callable[[Progress], Any]) -> None:
        self.name = name
        self._run = run
        self._lock, self._stop, self._over = Lock(), Event(), Event()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._doing, self._done = "starting", 0
        self._planned: int | None = None
        self._left: float | None = None
        self._notices: list[Finding] = []
        self.answer: Any = None
        """What the run returned, once it is over."""
        self.so_far: Any = None
        """Result so far, of a run that fails later."""
        self._is_failed = False
        Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        try:
            self.answer = self._run(self)
        except BaseException as error:
            self.answer, self._is_failed = error, True
        finally:
            self._ended = time.monotonic()
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether there is an answer."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Return whether the job is over after so many seconds at most."""
        return self._over.wait(seconds)

    def stop(self) -> None:
        """Ask the verb to end with what it has."""
        self._stop.set()

    @property
    def state(self) -> JobState:
        """How far it is."""
        running = "stopping" if self._stop.is_set() else "running"
        ended = "failed" if self._is_failed else "finished"
        with self._lock:
            return JobState(
                job=self.name,
                state=ended if self.is_over else running,
                doing="" if self.is_over else self._doing,
                done=self._done,
                planned=self._planned,
                seconds=round((self._ended or time.monotonic()) - self._began, 1),
                seconds_left=None if self.is_over else self._left,
                notices=tuple(self._notices),
            )

    def status(self, text: str) -> None:
        """Keep what is being done."""
        with self._lock:
            self._doing = text

    def plan(self, steps: int, seconds: float | None) -> None:
        """Keep how much work there is."""
        with self._lock:
            self._planned, self._left = steps, seconds

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        """Keep how much is done."""
        with self._lock:
            self._done, self._doing = done, text or self._doing
            self._left = self._left if seconds_left is None else seconds_left

    def notice(self, finding: Finding) -> None:
        """Keep a finding."""
        with self._lock:
            self._notices = [*self._notices, finding][-_MOST_NOTICES:]

    def update(self, result: object) -> None:
        """Keep the result so far."""
        self.so_far = result

    @property
    def stop_requested(self) -> bool:  # type: ignore[override]  # a constant of Silent
        """Whether somebody asked it to end."""
        return self._stop.is_set()


class Jobs:
    """The jobs of a server; one runs at a time, as two measurements would disturb each other."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = Lock()
        self._count = 0

    def start(self, verb: str, run: Callable[[Progress], Any]) -> Job:
        """Start a job.

        Raises:
            InvalidRequest: another one runs.
        """
        with self._lock:
            if busy := next((each.name for each in self._jobs.values() if not each.is_over), None):
                text = f"The job {busy} is running, and two measurements would disturb each other."
                raise InvalidRequest.because("job-running", text, fix="Wait for it, or stop it first.")
            self._count += 1
            job = self._jobs[f"{verb}-{self._count}"] = Job(f"{verb}-{self._count}", run)
            for name in list(self._jobs)[:-_MOST_KEPT]:
                del self._jobs[name]
            return job

    def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            InvalidRequest: there is none of that name.
        """
        with self._lock:
            if (job := self._jobs.get(name)) is None:
                known = ", ".join(self._jobs) or "none; start one"
                text = f"There is no job {name[:60]!r}."
                raise InvalidRequest.because("no-such-job", text, fix=f"Known jobs: {known}.")
            return job

    def stop_all(self, seconds: float) -> None:
        """Ask every job to end, and wait for them."""
        running = [each for each in self._jobs.values() if not each.is_over]
        for each in running:
            each.stop()
        deadline = time.monotonic() + seconds
        for each in running:
            each.wait(max(0.0, deadline - time.monotonic()))
