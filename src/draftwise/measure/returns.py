"""Waits for servers that break until they are back, and tells for how long."""

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
"""Most seconds that a server that broke is waited for, the same as a share of what is left, those that it gets anyway,
and those between looks."""
_MOST_RETURNS = 3
"""Times that a server may break and come back."""
_MOST_BREAKS = 30
"""Connections that may break while the server itself is there: a proxy or a balancer in front of it breaks them."""


@dataclass(slots=True, kw_only=True)
class Returns:
    """Waits for servers of others that broke, which somebody may be restarting.

    Args:
        warm: warms up an arm's server that was away.
        left_s: returns the seconds that are left for measuring.
        keep: takes the record of what was interrupted.
        progress: receives what is waited for, and for how long.
    """

    warm: Callable[[str], Awaitable[None]]
    left_s: Callable[[], float]
    keep: Callable[[Omission], None]
    progress: Progress
    _count: Counter[str] = field(default_factory=Counter, init=False)
    _breaks: Counter[str] = field(default_factory=Counter, init=False)

    async def wait(self, client: Client, error: BackendError, what: str) -> None:
        """Return when a server that broke answers again, as the same model, and is warm.

        Args:
            client: of the server.
            error: with which it broke.
            what: was interrupted, in words.

        Raises:
            BackendError: the given one, where the server does not come back.
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
