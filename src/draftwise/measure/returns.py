"""Waits until servers that failed are back, and reports for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from draftwise.core import BackendError, Finding, Omission, Progress
from draftwise.core.progress import check_stop
from draftwise.measure.load.client import Client

_AWAY_S, _AWAY, _LEAST_S, _POLL_S = 180.0, 0.25, 30.0, 1.0
"""Longest wait for a failed server in seconds, the same as a share of the time left, the minimum wait, and the seconds
between checks."""
_MOST_RETURNS = 3
"""Number of times that a server may fail and come back."""
_MOST_BREAKS = 30
"""Connections that may break while the server stays up, for example in a proxy in front of it."""


@dataclass(slots=True, kw_only=True)
class Returns:
    """Waits for failed servers that draftwise did not start, in case an operator restarts them.

    Args:
        warm: warms up an arm's server after its return.
        left_s: returns the seconds left for measuring.
        keep: receives a record of the interruption.
        progress: receives notes about the wait.
    """

    warm: Callable[[str], Awaitable[None]]
    left_s: Callable[[], float]
    keep: Callable[[Omission], None]
    progress: Progress
    _count: Counter[str] = field(default_factory=Counter, init=False)
    _breaks: Counter[str] = field(default_factory=Counter, init=False)

    async def wait(self, client: Client, error: BackendError, what: str) -> None:
        """Wait until a failed server answers again with the same model and is warm.

        Args:
            client: client of the server.
            error: its failure.
            what: the interrupted work, in words.

        Raises:
            BackendError: `error`, if the server does not come back.
        """
        clock, arm = asyncio.get_running_loop().time, client.backend.name
        began, why = clock(), str(error).partition("\n")[0]
        was_there = await _is_there(client)
        count, most = (self._breaks, _MOST_BREAKS) if was_there else (self._count, _MOST_RETURNS)
        count[arm] += 1
        if count[arm] > most:
            raise BackendError(f"{error}\nIt came back {most} times before: see why it ends.") from error
        left_s = max(0.0, self.left_s())
        patience_s = min(_AWAY_S, left_s, max(_AWAY * left_s, _LEAST_S))
        if not was_there:
            text = f"its server failed: {why} Waiting up to {patience_s:.0f} s for it. Ctrl-C keeps all measurements."
            self.progress.notice(Finding.warning("server-away", text, where=arm, fix="Start it again, unchanged."))
        while clock() < began + patience_s:
            check_stop(self.progress)
            waited = f"{clock() - began:.0f} of at most {patience_s:.0f} s"
            self.progress.status(f"waiting for the server of {arm} to come back, {waited}")
            with suppress(BackendError):
                if await _is_there(client):
                    await self.warm(arm)
                    text = f"its server failed and answered again after {clock() - began:.0f} s: {why}"
                    if was_there:
                        text = "its connection broke, and its server answered again at once"
                    if not was_there or count[arm] == 1:
                        self.progress.notice(Finding.warning("server-came-back", text, where=arm))
                    first = f"the first attempt at {what} of {arm}"
                    self.keep(Omission(what=first, reason=f"{text}; the turn was repeated"))
                    return
            await asyncio.sleep(_POLL_S)
        raise BackendError(f"{error}\nIt did not come back within {patience_s:.0f} s.") from error


async def _is_there(client: Client) -> bool:
    """Return whether a server answers, as the same model."""
    with suppress(BackendError):
        return (await client.backend.describe()).model == client.model
    return False
