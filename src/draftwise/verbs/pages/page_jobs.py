"""Long verbs in threads: their progress as events that pages follow, and a way to stop them."""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from draftwise.core import BackendError, Finding, InvalidSetup, StorageError
from draftwise.core.documents import to_json
from draftwise.core.progress import Progress, Silent

_KEPT = 500
"""Events that a page which comes late still gets."""
_MOST_JOBS = 20


class PageJob(Silent):
    """The Progress of one verb."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(9)
        self.is_done = False
        self.stop_requested = False
        self._events: deque[tuple[int, str]] = deque(maxlen=_KEPT)
        self._count = 0
        self._changed = threading.Condition()

    def tell(self, kind: str, value: Any) -> None:
        """Add an event: `status`, `progress`, `notice`, `update`, and at the end `error` or `done`."""
        with self._changed:
            self._count += 1
            self._events.append((self._count, json.dumps({"kind": kind, "value": value})))
            self.is_done = self.is_done or kind == "done"
            self._changed.notify_all()

    def status(self, text: str) -> None:
        """Tell what is done now."""
        self.tell("status", text)

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        """Tell how much is done."""
        self.tell("progress", {"done": done, "seconds_left": seconds_left, "text": text})

    def notice(self, finding: Finding) -> None:
        """Tell a finding."""
        self.tell("notice", to_json(finding))

    def update(self, result: Any) -> None:
        """Tell the result so far."""
        self.tell("update", result.to_dict())

    def wait(self, after: int, seconds: float) -> list[tuple[int, str]]:
        """Return the events behind one, waiting for the first of them."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > after or self.is_done, seconds)
            return [each for each in self._events if each[0] > after]


class PageJobs:
    """What runs now, and what has ended lately."""

    def __init__(self) -> None:
        self._jobs: dict[str, PageJob] = {}

    def start(self, work: Callable[[Progress], Any]) -> PageJob:
        """Begin work in a thread; the job tells how it ends.

        Raises:
            InvalidSetup: too much runs already.
        """
        if len(running := [each for each in self._jobs.values() if not each.is_done]) >= _MOST_JOBS:
            raise InvalidSetup.because(
                "too-many-jobs", f"{len(running)} jobs run already.", fix="Stop one, on the page that started it."
            )
        for key in list(islice(self._ended(), max(0, len(self._jobs) - _MOST_JOBS))):
            del self._jobs[key]
        job = PageJob()
        self._jobs[job.key] = job
        threading.Thread(target=self._run, args=(job, work), daemon=True).start()
        return job

    def find(self, key: str) -> PageJob | None:
        """Return a job by its key."""
        return self._jobs.get(key)

    def stop_all(self) -> None:
        """Ask every job to stop."""
        for job in self._jobs.values():
            job.stop_requested = True

    def _ended(self) -> Iterator[str]:
        return (key for key, job in self._jobs.items() if job.is_done)

    @staticmethod
    def _run(job: PageJob, work: Callable[[Progress], Any]) -> None:
        try:
            job.update(work(job))
        except InvalidSetup as error:
            job.tell("error", to_json(error.findings))
        except (BackendError, StorageError) as error:
            job.tell("error", [to_json(Finding.error("job-failed", str(error)))])
        except Exception as error:  # a page must not call done what failed
            text = f"draftwise has a fault: {type(error).__name__}: {error}"
            job.tell("error", [to_json(Finding.error("job-failed", text, fix="Report it with what you asked for."))])
        finally:
            job.tell("done", job.stop_requested)
