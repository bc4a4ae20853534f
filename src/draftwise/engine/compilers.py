"""Compiles GPU kernels in parallel processes: the compiler needs cores but no GPU.

Uses no torch, so the processes can start first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import NamedTuple

from draftwise.machine.processes import make_command

_LONGEST_S = 120
"""Seconds after which a server continues without its compilers."""


class CompileJob(NamedTuple):
    """A kernel to compile."""

    module: str
    name: str
    """Name of the kernel function in its module."""
    form: str
    """The specialization, in Triton's JSON format."""
    target: tuple[str, int, int]
    """Backend, compute capability and warp size."""


class Compilers:
    """A background process that starts compilers and compiles the given jobs.

    Args:
        count: number of kernels compiled in parallel.

    Attributes:
        num_jobs: number of jobs given so far.
    """

    def __init__(self, count: int) -> None:
        command = make_command("draftwise.engine.kernels.cuda.compile_ahead", count)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._stdin, self._process.stdin = self._process.stdin, None  # the sender's
        self.num_jobs = 0
        self._jobs: SimpleQueue[CompileJob | None] = SimpleQueue()
        self._sender = Thread(target=self._send, daemon=True)  # a process that reads nothing holds up nobody else
        self._sender.start()

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End the process and those that it has started, whatever they are doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._jobs.put(None)
        self._sender.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def begin(self, job: CompileJob) -> None:
        """Queue a kernel for compilation."""
        self.num_jobs += 1
        self._jobs.put(job)

    def finish(self) -> list[str]:
        """Wait until all jobs are done; return failed ones with the reason. Call it once."""
        self._jobs.put(None)
        try:
            answers, _ = self._process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            return [f"the compilers were not done after {_LONGEST_S} s"]
        failed = [line for line in answers.splitlines() if line]
        if self._process.returncode:
            failed.append(f"the compilers' process ended with status {self._process.returncode}")
        return failed

    def _send(self) -> None:
        assert self._stdin is not None
        with suppress(OSError), self._stdin:  # where it has ended its status says so
            for job in iter(self._jobs.get, None):
                self._stdin.write(f"{json.dumps(job)}\n")
                self._stdin.flush()
