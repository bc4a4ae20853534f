"""An engine in a process of its own that obeys JSON lines one by one, so that only one engine works at a time."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from cases import CASES
from clock import Timed
from shapes import SCALES, write_folders

__all__ = ["Peer", "PeerError", "PeerSide", "obey"]

Command = Callable[..., dict[str, Any]]


class PeerError(Exception):
    """The peer has failed, ended or taken too long; the message says which, with the end of its log."""


def obey(commands: dict[str, Command]) -> None:
    """Carry out commands from standard input until it ends; answer each with one line.

    Whatever else the process and its children print goes to standard error, so that no line is cut in two.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        task = json.loads(line)
        try:
            answer = commands[task.pop("do")](**task)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:600]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class PeerSide(Timed):
    """The commands that versus_vllm.py sends to the side of another engine. Each engine defines `open`."""

    open: Command

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(SCALES[args.scale])
        self.case, self.loaded, self.synthetic = CASES[args.case], args.loaded, args.acceptance == "synthetic"
        self.folders = write_folders(args.folders, self.scale, {self.case.drafter})

    @classmethod
    def obey(cls, about: str | None) -> None:
        """Read the command line and carry out the parent's commands."""
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--case", choices=CASES, required=True)
        parser.add_argument("--scale", choices=SCALES, default="8b")
        parser.add_argument("--folders", type=Path, required=True)
        parser.add_argument("--loaded", type=Path, required=True, help="where loaded models may be noted")
        parser.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
        side = cls(parser.parse_args())
        obey({name: getattr(side, name) for name in ("open", "row", "first")})


class Peer:
    """The parent's end.

    Args:
        name: for messages.
        command: starts the process; its log goes to `log`.
        env: its environment.
    """

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self._log = log
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._pending: str | None = None
        with log.open("a") as sink:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                env=env,
                start_new_session=True,
            )
        assert self._child.stdout is not None
        threading.Thread(target=self._read, args=(self._child.stdout,), daemon=True).start()

    def tell(self, do: str, **task: Any) -> None:
        """Give a command without waiting for its answer."""
        assert self._child.stdin is not None
        self._pending = do
        try:
            self._child.stdin.write(json.dumps({"do": do} | task) + "\n")
            self._child.stdin.flush()
        except OSError:
            raise PeerError(f"{self.name} has ended. {self._complaint()}") from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Return the answer to the last command.

        Raises:
            PeerError: there is none in time, or it says that the command failed.
        """
        until = time.monotonic() + timeout_s
        while True:
            try:
                line = self._answers.get(timeout=min(1.0, max(until - time.monotonic(), 0.01)))
            except queue.Empty:
                if time.monotonic() > until:
                    raise PeerError(f"{self.name}: {self._pending} took longer than {timeout_s:.0f} s.") from None
                if self._child.poll() is None:
                    continue
                line = None
            if line is None:
                raise PeerError(f"{self.name} ended at {self._pending}. {self._complaint()}")
            answer = json.loads(line)
            if "error" in answer:
                raise PeerError(f"{self.name}: {self._pending}: {answer['error']}")
            return answer

    def ask(self, do: str, *, timeout_s: float, **task: Any) -> dict[str, Any]:
        """Give a command and return its answer."""
        self.tell(do, **task)
        return self.answer(timeout_s)

    def close(self) -> None:
        """End the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(timeout=30)

    def _read(self, answers: TextIO) -> None:
        for line in answers:
            if line.startswith("{"):  # a library may greet the world before `obey` takes its standard output away
                self._answers.put(line)
        self._answers.put(None)

    def _complaint(self) -> str:
        """Return the last lines of the log that look like a reason."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join(line[:300] for line in [*errors[-3:], *lines[-2:]])
