"""A server that the operator's own command replaces by another one at the same URL, and the proof that it did."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from draftwise.backends.line_up import no_proof
from draftwise.backends.url import UrlBackend
from draftwise.core import BackendError, InvalidSetup
from draftwise.knowledge.server_metrics import counts_drafts

__all__ = ["SwitchCommand"]

_POLL_S = 1.0
_PLACE = "{arm}"
_TAIL = 600
"""Characters of a failed command's output that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCommand:
    """Brings servers up by a command, e.g. `kubectl patch ... {arm}`, run without a shell.

    That it worked is proven by the page of counters: another process start time or counters that began anew, and
    counters of drafts where there should be speculation, and none where not.

    Args:
        command: `{arm}` in it stands for the name of an arm.
        baseline: name of the arm that does not speculate.
        stay: name of the arm to leave up in the end.
        patience_s: how long a replacement may take.
    """

    command: str
    baseline: str
    stay: str
    patience_s: float = 900.0

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise _no_command(f"{self.command!r} is no command ({error}).") from None
        if not any(_PLACE in word for word in words):
            raise _no_command(f"{self.command!r} does not say where the arm's name goes.")

    async def bring_up(self, backend: UrlBackend, before: UrlBackend | None) -> None:
        """Run the command for an arm, and return when its server answers.

        Raises:
            BackendError: the command failed, or nothing shows within the time that the server was replaced.
        """
        known = None if before is None else await before.find_life()
        last = None if before is None else before.name
        if before is not None:
            await before.stop()
        await self._run(backend.name, last)
        await self._wait(backend, known)

    async def leave(self, last: UrlBackend | None) -> None:
        """Bring back the arm that is to stay."""
        name = None if last is None else last.name
        if last is not None:
            await last.stop()
        if name != self.stay:
            await self._run(self.stay, name)

    async def _run(self, arm: str, last: str | None) -> None:
        words = [word.replace(_PLACE, arm) for word in shlex.split(self.command)]
        state = f"The server that was up last is {last}'s." if last else "No arm had been brought up before."
        try:
            child = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise BackendError(f"--switch: {words[0]!r} cannot be run ({error.strerror}). {state}") from None
        output, _ = await child.communicate()
        if child.returncode:
            tail = output.decode(errors="replace").strip()[-_TAIL:]
            text = f"--switch: {shlex.join(words)!r} ended with status {child.returncode}: {tail}"
            raise BackendError(f"{text}\n{state} What was measured is kept.")

    async def _wait(self, backend: UrlBackend, known: tuple[float | None, int | None] | None) -> None:
        clock = asyncio.get_running_loop().time
        ends_at, seen, steady = clock() + self.patience_s, "it does not answer", False
        while clock() < ends_at:
            with suppress(BackendError):
                await backend.start()
                seen = await self._find_doubt(backend, known)
                if not seen and steady:
                    return
                steady = not seen
            await asyncio.sleep(_POLL_S)
        await backend.stop()
        raise no_proof(backend.name, self.command, self.patience_s, seen or "it did not stay up")

    async def _find_doubt(self, backend: UrlBackend, known: tuple[float | None, int | None] | None) -> str:
        """Return what speaks against a server being the one that was asked for; empty where nothing does."""
        info, (started, tokens) = await backend.describe(), await backend.find_life()
        if info.metric_names is None:
            return "it shows no counters (name their page with --metrics-url)"
        speculates, should = await backend.has_draft_counters(), backend.name != self.baseline
        if counts_drafts(info.metric_names) and speculates is not should:
            return f"its /metrics has {'' if speculates else 'no '}counters of drafts"
        if known is None:
            return ""
        began_anew = started > known[0] if started and known[0] else (tokens or 0) < (known[1] or 0)
        return "" if began_anew else "its process and its counters are those of before"


def _no_command(text: str) -> InvalidSetup:
    fix = "Example: --switch './switch.sh {arm}', where the script ends when the roll-out has."
    return InvalidSetup.because("not-a-command", text, where="--switch", fix=fix)
