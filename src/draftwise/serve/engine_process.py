"""The engine's process: `python -m draftwise.serve.engine_process FD`, where FD is its end of a socket pair.

Started by `launch.start_process`, never by hand; it ends when the other end closes, so it cannot outlive its parent.
"""

from __future__ import annotations

import logging
import pickle
import signal
import socket
import sys

from draftwise.serve.channel import Channel
from draftwise.serve.engine_loop import run_engine

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Build the engine that the first message describes, and run it."""
    for number in (signal.SIGINT, signal.SIGTERM):  # may reach the whole group; the server says when to end
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    channel = Channel(socket.socket(fileno=descriptor))
    sys.path, build = channel.receive()
    run_engine(pickle.loads(build), channel)


if __name__ == "__main__":
    main(int(sys.argv[1]))
