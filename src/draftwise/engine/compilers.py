"""Processes that compile a GPU's kernels side by side: the compiler needs cores and no GPU.

Nothing here needs torch, so that they can be started before anything else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

__all__ = ["Compilers", "Job"]

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from draftwise.engine.kernels.cuda.ahead_process import main; main(int(sys.argv[1]))"
)
"""Code for the new interpreter: it has the same module search path as this one."""


_LONGEST_S = 120
"""Seconds after which a server does without its compilers."""


class Job(NamedTuple):
    """A kernel to compile."""

    module: str
    name: str
    """Of the function in the module."""
    form: str
    """What Triton compiles different code for, as it writes that down itself (JSON)."""
    target: tuple[str, int, int]
    """Backend, compute capability and threads of a warp."""


class Compilers:
    """A process that starts its compilers while this one does something else.

    Args:
        count: kernels compiled at a time.
    """

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-P", "-c", _BOOT, str(count), json.dumps(sys.path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End the process and those that it has started, whatever they are doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def compile(self, jobs: Iterable[Job]) -> list[str]:
        """Compile everything; return what could not be, with the reason. To be called once."""
        try:
            answers, _ = self._process.communicate("".join(f"{json.dumps(job)}\n" for job in jobs), _LONGEST_S)
        except subprocess.TimeoutExpired:
            return [f"the compilers were not done after {_LONGEST_S} s"]
        failed = [line for line in answers.splitlines() if line]
        if self._process.returncode:
            failed.append(f"the compilers' process ended with status {self._process.returncode}")
        return failed
