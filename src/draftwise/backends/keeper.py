"""Runs a command until its own standard input closes: a child that can never outlive the process that wanted it.

A script of its own, run by path (it imports nothing but the standard library). The parent holds the other end of
the pipe; a clean stop, Ctrl-C and a kill of the parent all close it, and all take the same way down.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE_S = 10


def main(command: list[str]) -> int:
    """Run `command` in this process's group until it ends or standard input closes; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    return child.wait()


def _end_with_input(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    # Its own children too: the group is this process's, so nothing of it remains.
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
