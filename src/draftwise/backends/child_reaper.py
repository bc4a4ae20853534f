"""Runs a command until its own standard input closes, so the child never outlives its parent.

Runs as a script by path and imports only the standard library. The parent holds the other end of the pipe. A clean
stop, Ctrl-C and a kill of the parent all close it, with the same effect: a polite signal to the command, time to react,
then a kill of all its descendants. That includes orphans (vLLM's engine survives its API server): on Linux, they become
this process's children.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress

GRACE_S = 15
"""Seconds for the command to end by itself. vLLM takes 1 to 3 s, more with many GPUs."""
TRACKER_S = 1
"""Seconds for Python's resource trackers to clean up after killed processes."""
NOT_RUN = 127
"""Exit status if the command cannot be started, as in a shell."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""prctl(2)."""


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes. Return its exit status, and leave no process behind."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Should this process be killed, the command is asked to end: nobody else would know of it.
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_RUN
    ended = threading.Event()
    threading.Thread(target=_end_with_input, args=(child.pid, ended), daemon=True).start()
    status = _wait(child.pid)
    ended.set()
    _end_rest()
    if status < 0:
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)  # whoever looks at this process sees what happened to the command
    return status


def find_descendants(pid: int) -> list[int]:
    """Return a process's living descendants, parents before children."""
    children = defaultdict(list)
    for each, parent in _pairs():
        children[parent].append(each)
    found = list(children[pid])
    for each in found:
        found += children[each]
    return found


def kill_all(pids: list[int]) -> None:
    """Kill processes at once, including suspended ones."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _pairs() -> list[tuple[int, int]]:
    """Return every process of the machine with its parent."""
    if not os.path.isdir("/proc/self"):
        with subprocess.Popen(["ps", "-axo", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            found = [(int(pid), int(parent)) for pid, parent in map(str.split, ps.communicate()[0].splitlines())]
        return [pair for pair in found if pair[0] != ps.pid]
    pairs = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            # pid (name) state ppid ...; the name may hold anything, brackets and spaces too.
            pairs.append((int(name), int(stat.read().rpartition(b")")[2].split()[1])))
    return pairs


def _wait(pid: int) -> int:
    """Return the exit status of a child (negative: the signal that ended it), reaping adopted orphans meanwhile."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_rest() -> None:
    """End what the command left running."""
    deadline = time.monotonic() + TRACKER_S
    while family := find_descendants(os.getpid()):
        # A tracker frees the shared memory of the processes it tracks once these are gone, and then ends.
        trackers = [] if time.monotonic() > deadline else [pid for pid in family if _is_tracker(pid)]
        kill_all([pid for pid in family if pid not in trackers])
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _is_tracker(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
        return b"multiprocessing.resource_tracker" in line.read()
    return False


def _end_with_input(pid: int, ended: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    family = find_descendants(os.getpid())
    for each in family:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGCONT)  # a stopped process would not hear the next signal
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not ended.wait(GRACE_S):
        kill_all([pid])
        # `main` ends what it finds; without adoption (not Linux) the orphans are only known from before.
        kill_all(family[1:] if sys.platform != "linux" else [])


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
