"""Renders chat templates in a process of their own, within bounds on time and memory: a template may ask for any."""

from __future__ import annotations

import json
import pickle
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from typing import Any

from draftwise.core import Finding, InvalidSetup

_CPU_S = 3.0
"""Processor time for a conversation, and for each megabyte of it."""
MEMORY = 2**31
"""Bytes that rendering may take."""
_CAUSES: dict[int, str] = {
    signal.SIGPROF: "takes too long on",
    signal.SIGABRT: "takes too much memory for",
    signal.SIGKILL: "takes too much memory for",
}
"""The cause, by the signal that ended the process."""
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from draftwise.engine.text.rendering import main; main(int(sys.argv[1]))"
)


class Renderer:
    """Renders one template; its process starts with the first conversation, and ends with this object."""

    def __init__(self, source: str) -> None:
        self._source, self._lock = source, Lock()
        self._connection: Connection | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt text.

        Raises:
            InvalidSetup: the template is not valid, refuses the messages, or exceeds the bounds.
        """
        with self._lock:
            if self._connection is None:
                self._start()
            assert self._connection is not None
            try:
                self._connection.send((messages, variables))
                outcome = self._connection.recv()
            except (EOFError, ConnectionError):
                self._connection = None
                self._end()
                cause = _CAUSES.get(-self._process.returncode, "fails on")
                raise InvalidSetup.because(
                    "chat-template-refused", f"The model's chat template {cause} these messages.", where="messages"
                ) from None
        if isinstance(outcome, str):
            return outcome
        raise InvalidSetup(outcome)

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            command = [sys.executable, "-P", "-c", _BOOT, str(descriptor), json.dumps(sys.path)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor])
        self._end = weakref.finalize(self, _end, self._connection, self._process)
        self._connection.send((self._source, _CPU_S))


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait()


def limit_memory() -> None:
    """Let this process take `MEMORY` more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(descriptor: int) -> None:
    """Render conversations until the other end is gone; `descriptor` is this end of a socket pair."""
    from draftwise.engine.text.tokenizer import ChatTemplate

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole process group
    with suppress(EOFError, ConnectionError), Connection(descriptor) as connection:
        source, cpu_s = connection.recv()
        template = ChatTemplate(source)
        limit_memory()
        while True:
            given = connection.recv_bytes()
            signal.setitimer(signal.ITIMER_PROF, cpu_s * (1 + len(given) / 2**20))
            try:
                outcome: str | list[Finding] = template.render_here(*pickle.loads(given))
            except InvalidSetup as error:
                outcome = list(error.findings)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(outcome)
