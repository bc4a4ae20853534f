"""Runs a measurement in a terminal: what Ctrl-C and SIGTERM do to it, what ended it early, and what resumes it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Container

import click
from click.core import ParameterSource

from draftwise.cli._decision import ConsoleProgress
from draftwise.core import BackendError, StorageError
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.session import Session

__all__ = ["refuse_others", "run_session"]


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


def refuse_others(ctx: click.Context, stay: Container[str]) -> None:
    """Refuse options that would change a run that is under way.

    Args:
        ctx: of the command.
        stay: names of the parameters that may be given with `--resume`.

    Raises:
        UsageError: others are given.
    """
    given = [each for each in ctx.command.params if _is_given(ctx, each)]
    if others := sorted(
        each.opts[0] if each.opts[0].startswith("-") else "TARGET" for each in given if each.name not in stay
    ):
        raise click.UsageError(f"--resume goes on with the run as it was planned; leave out {', '.join(others)}.")


def _is_given(ctx: click.Context, param: click.Parameter) -> bool:
    return param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
