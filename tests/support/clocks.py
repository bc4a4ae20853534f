"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio


def skip_time(seconds: float) -> None:
    """Let the running event loop find that so much more time has passed: what is due by then happens next."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
