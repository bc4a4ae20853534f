"""The engine's process (`launch.start_process`), which ends when the other end of its channel closes."""

from __future__ import annotations

import gc
import logging
import signal
import socket
from typing import TYPE_CHECKING

from draftwise.engine.startup import Startup
from draftwise.serve.channel import Channel
from draftwise.serve.engine_loop import Build, run_engine

if TYPE_CHECKING:
    from draftwise.engine.core import Engine

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Build the engine that the first message describes, and run it; `descriptor` is this end of a socket pair."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group; the server ends this process
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    channel = Channel(socket.socket(fileno=descriptor))
    build: Build = channel.receive()

    def build_frozen(startup: Startup) -> Engine:
        engine = build(startup)
        # Objects of the start-up live as long as the process: collecting them again would pause steps for milliseconds.
        gc.collect()
        gc.freeze()
        return engine

    run_engine(build_frozen, channel)
