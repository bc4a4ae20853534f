"""Runs verbs that take minutes in the background: start, poll, stop, and get the result."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple

from draftwise.core import Finding, InvalidRequest
from draftwise.core.progress import Progress, Silent
from draftwise.knowledge.messages import fault

_MOST_KEPT = 20
"""Jobs that are over and still known."""
_MOST_NOTICES = 50
_MOST_EVENTS = 500
"""Events that a follower who comes late still gets."""


class Event(NamedTuple):
    """What happened to a job."""

    number: int
    """Number of the job, from 1."""
    kind: str
    """`status`, `progress`, `notice`, `update`; at the end `update` or `error`, then `done`."""
    value: Any
    """Text, numbers, a finding, a result or an exception; for `done`, whether a stop was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job."""

    job: str
    state: str
    """`running`, `stopping`, `finished`, or `failed`: then the result is an error."""
    doing: str
    """The current phase, in words."""
    done: int
    """Steps done so far."""
    planned: int | None
    """Steps in total; null until known."""
    seconds: float
    """Seconds since the start."""
    seconds_left: float | None
    notices: tuple[Finding, ...]
    """Findings so far, newest last."""


class Job(Silent):
    """One run of a verb on its own thread. Other threads poll its state or follow its events."""

    def __init__(self, name: str, run: Callable[[Progress], Any]) -> None:
        self.name = name
        self.answer: Any = None
        """What the run returned or raised, once it is over."""
        self.so_far: Any = None
        """Result so far."""
        self.is_over = self.stop_requested = False
        self._changed = Condition()
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._began = time.monotonic()
        self._ended: float | None = None
        self._doing, self._done = "starting", 0
        self._planned: int | None = None
        self._left: float | None = None
        self._notices: deque[Finding] = deque(maxlen=_MOST_NOTICES)
        Thread(target=self._work, args=(run,), name=name, daemon=True).start()

    def _work(self, run: Callable[[Progress], Any]) -> None:
        try:
            self.answer = run(self)
        except BaseException as error:
            self.answer = error
        with self._changed:
            self._ended, self.is_over = time.monotonic(), True
            self._tell("error" if self._is_failed else "update", self.answer)
            self._tell("done", self.stop_requested)

    @property
    def _is_failed(self) -> bool:
        return isinstance(self.answer, BaseException)

    def _tell(self, kind: str, value: Any) -> None:
        with self._changed:
            number = self._events[-1].number + 1 if self._events else 1
            self._events.append(Event(number, kind, value))
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds; return whether the job is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, seconds)

    def follow(self, after: int, seconds: float) -> list[Event]:
        """Return the kept events after a number; wait at most `seconds` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or (self._events and self._events[-1].number > after), seconds)
            return [each for each in self._events if each.number > after]

    def stop(self) -> None:
        """Ask the verb to stop and keep what it has."""
        self.stop_requested = True

    @property
    def state(self) -> JobState:
        """Its state now."""
        running = "stopping" if self.stop_requested else "running"
        ended = "failed" if self._is_failed else "finished"
        with self._changed:
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
        """Record the current phase."""
        with self._changed:
            self._doing = text
            self._tell("status", text)

    def plan(self, steps: int, seconds: float | None) -> None:
        """Record the amount of work."""
        with self._changed:
            self._planned, self._left = steps, seconds

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        """Record how much is done."""
        with self._changed:
            self._done, self._doing = done, text or self._doing
            self._left = self._left if seconds_left is None else seconds_left
            self._tell("progress", {"done": done, "seconds_left": seconds_left, "text": text})

    def notice(self, finding: Finding) -> None:
        """Record a finding."""
        with self._changed:
            self._notices.append(finding)
            self._tell("notice", finding)

    def update(self, result: object) -> None:
        """Record the result so far."""
        self.so_far = result
        self._tell("update", result)


class Jobs:
    """The jobs of a server.

    Args:
        most: jobs that may run at once; 1 by default, because two measurements would disturb each other.
    """

    def __init__(self, most: int = 1) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = Lock()
        self._count, self._most = 0, most

    def start(self, verb: str, run: Callable[[Progress], Any]) -> Job:
        """Start a job.

        Raises:
            InvalidRequest: the maximum number of jobs already runs.
        """
        with self._lock:
            if len(busy := [each.name for each in self._jobs.values() if not each.is_over]) >= self._most:
                raise InvalidRequest(fault("job-running", names=", ".join(busy)))
            self._count += 1
            job = self._jobs[f"{verb}-{self._count}"] = Job(f"{verb}-{self._count}", run)
            for name in list(self._jobs)[:-_MOST_KEPT]:
                if self._jobs[name].is_over:
                    del self._jobs[name]
            return job

    def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            InvalidRequest: no job has that name.
        """
        with self._lock:
            if (job := self._jobs.get(name)) is None:
                known = ", ".join(self._jobs) or "none; start one"
                raise InvalidRequest(fault("no-such-job", name=name[:60], known=known))
            return job

    def stop_all(self, seconds: float) -> None:
        """Ask every job to stop, and wait up to `seconds` for them."""
        running = [each for each in self._jobs.values() if not each.is_over]
        for each in running:
            each.stop()
        deadline = time.monotonic() + seconds
        for each in running:
            each.wait(max(0.0, deadline - time.monotonic()))
