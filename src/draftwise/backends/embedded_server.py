"""Runs the embedded server as a child process."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from draftwise.backends.backend import ServerInfo
from draftwise.backends.child import ChildBackend
from draftwise.backends.gpu_placement import GpuPlacement
from draftwise.core import Finding, InvalidSetup, Setup
from draftwise.core.exit_codes import ExitCode
from draftwise.setups.write import write_words

_URL = re.compile(r"http://127\.0\.0\.1:\d+")
_PHASE = re.compile(r"([a-z].*): (\d+\.\d) s")


class EmbeddedBackend(ChildBackend):
    """`draftwise serve` on a free port of 127.0.0.1. Always ends with this process.

    Args:
        setup: setup to serve; its target is a checkpoint directory.
        placement: GPU and share of its memory. None: whatever is available.
        timeout_s: maximum seconds for loading.
        on_wait: called with the server's latest output line while it loads.

    Attributes:
        setup: the served setup, with its share of the GPU's memory.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        *,
        log: Path,
        placement: GpuPlacement | None = None,
        timeout_s: float = 600,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self.setup = setup if placement is None else placement.apply(setup)
        self._placement = placement
        self._arguments = write_words(self.setup, ["serve"])
        command = shlex.join(["draftwise", *self._arguments])
        super().__init__(name, command=command, log=log, timeout_s=timeout_s, on_wait=on_wait)

    least_cpu_s = 3.0

    async def describe(self) -> ServerInfo:
        """Return what the server reports, and where it runs."""
        info = await super().describe()
        return info if self._placement is None else replace(info, started={**info.started, **self._placement.told})

    async def _launch(self) -> None:
        serve = [sys.executable, "-m", "draftwise", *self._arguments, "--host", "127.0.0.1", "--port", "0"]
        # A key meant for the operator's own server would lock this one.
        wanted = {name: value for name, value in os.environ.items() if name != "DRAFTWISE_API_KEY"}
        self._spawn(serve, wanted | ({} if self._placement is None else self._placement.env))
        while not (found := _URL.search("\n".join(self._tail.lines))):
            await self._wait()
        self.url = found[0]
        await self._wait_for_health()

    async def rest(self) -> None:
        """Do nothing: the engine waits without using a core."""

    def _watch(self, lines: Sequence[str]) -> str:
        """Return after which phase it is: its lines tell of those that are over."""
        over = next((found for line in reversed(lines) if (found := _PHASE.fullmatch(line))), None)
        return self._doing if over is None else f"after {over[1]} ({over[2]} s)"

    def _explain(self, status: int) -> Exception:
        faults = [line.removeprefix("error: ") for line in self._tail.lines if line.startswith("error: ")]
        if status == ExitCode.USAGE and faults:  # the user's mistakes, on its `error:` lines
            return InvalidSetup([_fault(self.name, fault) for fault in faults])
        return super()._explain(status)


def _fault(arm: str, message: str) -> Finding:
    return Finding.error("server-refused", message, where=arm)
