"""Runs a measurement in a terminal: what Ctrl-C and SIGTERM do to it, and what ended it early."""

from __future__ import annotations

import asyncio
import signal

from draftwise.cli._decision import ConsoleProgress
from draftwise.core import BackendError, StorageError
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.session import Session

__all__ = ["run_session"]


def run_session(session: Session, progress: ConsoleProgress) -> BaseException | None:
    """Run a session; return what ended it early."""

    async def run() -> None:
        # SIGTERM does what Ctrl-C does: the servers go down, what was measured stays.
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        reminder = asyncio.create_task(progress.remind())
        try:
            await session.run()
        finally:
            reminder.cancel()

    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            runner.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError, BackendError, StorageError) as error:
        return error
    return None
