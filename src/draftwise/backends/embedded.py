"""The embedded server as a child process."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from draftwise.backends import keeper
from draftwise.backends.url import UrlBackend
from draftwise.core import BackendError, Finding, InvalidSetup, Severity, SpecConfig

__all__ = ["EmbeddedBackend"]

_URL = re.compile(r"http://127\.0\.0\.1:\d+")
_POLL_S = 0.1
_TAIL_LINES = 15
_INVALID = 1
"""Exit status of a command that found its user's mistakes; they are on its `error:` lines."""


class EmbeddedBackend(UrlBackend):
    """`draftwise serve` on a free port of 127.0.0.1, ended with this process whatever happens to it.

    Args:
        name: of the arm.
        target: directory of the checkpoint.
        spec: speculative config, None for plain decoding.
        args: further arguments of `draftwise serve`.
        log: file that receives what the server prints.
        timeout_s: how long loading may take.
        on_wait: told the server's latest line while it loads.
    """

    def __init__(
        self,
        name: str,
        target: str,
        *,
        spec: SpecConfig | None,
        log: Path,
        args: Sequence[str] = (),
        timeout_s: float = 600,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name, "http://127.0.0.1:0")
        given = [] if spec is None else ["--speculative-config", spec.to_json()]
        self._arguments = ["serve", target, *given, *args]
        self.command = shlex.join(["draftwise", *self._arguments])
        self._log = log
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Return when the server is healthy.

        Raises:
            InvalidSetup: it says what is wrong with the target, the config or the arguments.
            BackendError: it ended or was not healthy in time; carries the last lines it printed.
        """
        serve = [sys.executable, "-m", "draftwise", *self._arguments, "--host", "127.0.0.1", "--port", "0"]
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, keeper.__file__, *serve],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A key meant for the operator's own server would lock this one.
                env={name: value for name, value in os.environ.items() if name != "DRAFTWISE_API_KEY"},
            )
        try:
            async with asyncio.timeout(self._timeout_s):
                self.url = await self._wait_for_url()
                self._open()
                await self._wait_for_health()
        except TimeoutError:
            await self.stop()
            raise BackendError(self._failure(f"was not ready after {self._timeout_s:.0f} s")) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server and wait until it is gone."""
        await super().stop()
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.to_thread(process.wait)

    async def _wait_for_url(self) -> str:
        while True:
            lines = self._printed()
            if found := _URL.search("\n".join(lines)):
                return found[0]
            await self._wait(lines)

    async def _wait_for_health(self) -> None:
        while True:
            try:
                if (await self.client.get("/health")).is_success:
                    return
            except httpx.HTTPError:
                pass
            await self._wait(self._printed())

    async def _wait(self, lines: Sequence[str]) -> None:
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            if status == _INVALID and faults:
                raise InvalidSetup([_fault(self.name, fault) for fault in faults])
            raise BackendError(self._failure(f"ended with status {status}"))
        if self._on_wait is not None:
            self._on_wait(lines[-1] if lines else "starting")
        await asyncio.sleep(_POLL_S)

    def _printed(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def complaint(self) -> str:
        """Return the last lines that the server printed."""
        tail = "\n".join(f"  | {line}" for line in self._printed()[-_TAIL_LINES:])
        return f"Its last lines ({self._log}):\n{tail}\nTry it alone: {self.command}"

    def _failure(self, what: str) -> str:
        return f"{self.name}: the server {what}. {self.complaint()}"


def _fault(arm: str, message: str) -> Finding:
    return Finding(code="server-refused", severity=Severity.ERROR, message=message, where=arm)
