"""The embedded server as a child: its failures are explained, and it never outlives who started it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftwise.backends import EmbeddedBackend, keeper
from draftwise.core import BackendError, InvalidSetup, SpecConfig

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=2)


def start(tmp_path: Path, target: str, **settings) -> None:
    backend = EmbeddedBackend("arm", target, log=tmp_path / "arm.log", **{"spec": NGRAM, **settings})
    try:
        asyncio.run(backend.start())
    finally:
        asyncio.run(backend.stop())


def test_the_users_mistake_is_told_as_the_server_tells_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match=r"^arm: .*nowhere.* is not a directory") as caught:
        start(tmp_path, str(tmp_path / "nowhere"))
    assert "Traceback" not in str(caught.value)


def test_any_other_end_shows_the_last_lines_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="the server ended with status 2") as caught:
        start(tmp_path, "target", args=["--no-such-flag"])
    assert "No such option" in str(caught.value)
    assert "Try it alone: draftwise serve target" in str(caught.value)


def test_a_server_that_is_not_ready_in_time_is_ended(tmp_path: Path, tiny_target: Path) -> None:
    with pytest.raises(BackendError, match="was not ready after 0 s"):
        start(tmp_path, str(tiny_target), timeout_s=0.3)


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pid: int) -> bool:
    for _ in range(100):
        if not alive(pid):
            return True
        time.sleep(0.1)
    return False


def keep(tmp_path: Path) -> tuple[subprocess.Popen, int]:
    """Start a keeper from a process in between; return that process and the kept child's pid."""
    note = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(60)"
    between = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, {keeper.__file__!r}, sys.executable, '-c', {child!r}], "
        "stdin=subprocess.PIPE, start_new_session=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", between])
    while not (note.exists() and note.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    return process, int(note.read_text())


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_a_killed_parent_takes_the_kept_child_along(tmp_path: Path) -> None:
    parent, child = keep(tmp_path)
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until_gone(child)


def run_keeper(code: str, *, grace_s: float = 10) -> subprocess.Popen:
    """Start a keeper of a Python program, with another patience."""
    patient = (
        f"import runpy, sys; keeper = runpy.run_path({keeper.__file__!r}); "
        f"keeper['main'].__globals__['GRACE_S'] = {grace_s}; sys.exit(keeper['main'](sys.argv[1:]))"
    )
    command = [sys.executable, "-c", patient, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def test_a_child_deaf_to_sigterm_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    with run_keeper(f"{deaf}; time.sleep(60)", grace_s=0.2) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"deaf\n"
        process.stdin.close()
        assert process.stdout.read() == b"", "the pipe closes when the last process that holds it is gone"
        assert process.wait() == -signal.SIGKILL


def test_the_exit_status_of_the_child_is_passed_on() -> None:
    with run_keeper("raise SystemExit(7)") as process:
        assert process.wait() == 7
