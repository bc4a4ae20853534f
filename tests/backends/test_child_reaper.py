"""A child ends with whoever wanted it, and takes along what came from it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftwise.backends import child_reaper

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pid: int) -> bool:
    for _ in range(600):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


def keep(tmp_path: Path) -> tuple[subprocess.Popen, int]:
    """Start a child_reaper from a process in between; return that process and the kept child's pid."""
    note = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    between = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, {child_reaper.__file__!r}, sys.executable, '-c', {child!r}], "
        "stdin=subprocess.PIPE, start_new_session=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", between])
    while not (note.exists() and note.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    return process, int(note.read_text())


@needs_proc
def test_a_killed_parent_takes_the_kept_child_along(tmp_path: Path) -> None:
    parent, child = keep(tmp_path)
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until_gone(child)


def run_reaper(code: str, *, grace_s: float = 10) -> subprocess.Popen:
    """Start a child_reaper of a Python program, with another patience."""
    patient = (
        f"import runpy, sys; child_reaper = runpy.run_path({child_reaper.__file__!r}); "
        f"child_reaper['main'].__globals__['GRACE_S'] = {grace_s}; sys.exit(child_reaper['main'](sys.argv[1:]))"
    )
    command = [sys.executable, "-c", patient, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def test_a_child_deaf_to_sigterm_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    with run_reaper(f"{deaf}; time.sleep(60)", grace_s=0.2) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"deaf\n"
        process.stdin.close()
        assert process.stdout.read() == b"", "the pipe closes when the last process that holds it is gone"
        assert process.wait() == -signal.SIGKILL


def test_the_exit_status_of_the_child_is_passed_on() -> None:
    with run_reaper("raise SystemExit(7)") as process:
        assert process.wait() == 7


def test_a_command_that_cannot_be_run_is_told_in_a_line(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, child_reaper.__file__, str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert told.returncode == 127
    assert told.stderr == f"{tmp_path / 'none'}: No such file or directory\n"


ORPHAN = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
    "start_new_session=True); print(child.pid, flush=True)"
)


@needs_proc
@linux_only
def test_what_outlives_the_child_is_ended_with_it() -> None:
    with run_reaper(ORPHAN) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert process.wait() == 0
        assert wait_until_gone(orphan)


@needs_proc
def test_a_stopped_child_ends_politely_too() -> None:
    with run_reaper("import os, time; print(os.getpid(), flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        child = int(process.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        process.stdin.close()
        assert process.wait() == -signal.SIGTERM
        assert not alive(child)


@needs_proc
@linux_only
def test_a_killed_keeper_takes_the_child_along() -> None:
    with run_reaper("import os, time; print(os.getpid(), flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        assert wait_until_gone(child)


def test_descendants_are_listed_from_the_top() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN + "; sys.stdin.read()"], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        try:
            found = child_reaper.find_descendants(os.getpid())
            assert found.index(process.pid) < found.index(orphan)
            assert child_reaper.find_descendants(orphan) == []
        finally:
            child_reaper.kill_all([orphan])
            process.communicate()
