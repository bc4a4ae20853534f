"""Servers and clients are killed in the middle of runs: what was measured stays, and the run goes on from there."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest
from click.testing import CliRunner
from tests.support.reports import UNPLOTTED

from draftwise.cli import main
from draftwise.core import Run
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.runs import RunDirectory

pytestmark = pytest.mark.usefixtures("undisturbed", "unplotted")
PROMPTS = [f"prompt {number}" for number in range(8)]
SCRIPTS = {
    "plain": {"first_token_s": 0.05, "step_s": 0.010},
    "faster": {"first_token_s": 0.05, "step_s": 0.015, "k": 3, "accepted": [3, 1]},
}
PATIENCE_S = 300
"""For a machine under load; nothing is concluded from how long things take."""
IMPATIENT = f"import draftwise.measure.roster as returns; returns._AWAY_S = 5.0; {UNPLOTTED}"
"""A client that waits seconds, not minutes, for a server to come back."""
PASSES, TURN = 3, 16
"""Passes, and requests in the one turn of an arm: four for each of four streams."""


class Server:
    """A fake in a process of its own."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        command = [sys.executable, "-m", "tests.support.fake_server", "--script", json.dumps(SCRIPTS[name])]
        self.process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def answered(self) -> Counter[int]:
        """Return how often it has answered each of the workload's prompts (by checksum) to the end."""
        rows = httpx.get(f"{self.url}/served", trust_env=False).json()
        mine = {crc32(json.dumps(text).encode()) for text in PROMPTS}
        return Counter(row["prompt"] for row in rows if row["outcome"] == "length" and row["prompt"] in mine)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> "Server":
        """Return another server at the same address."""
        return Server(self.name, int(self.url.rpartition(":")[2]))


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    running = {name: Server(name) for name in SCRIPTS}
    yield running
    for server in running.values():
        server.kill()


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"id": text, "prompt": text, "max_tokens": 24}) + "\n" for text in PROMPTS))
    return path


def decide_arguments(servers: dict[str, Server], workload: Path) -> list[Any]:
    arms = ["--url", servers["plain"].url, "--candidate-url", servers["faster"].url]
    arms += ["--candidate", 'faster={"method": "ngram", "num_speculative_tokens": 3}']
    sizes = ["--concurrency", 4, "--repeats", PASSES, "--warmup", 1, "--prompts", len(PROMPTS), "--no-adaptive"]
    return [*arms, "--workload", workload, *sizes]


def measure(servers: dict[str, Server], workload: Path, out: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPATIENT, "decide", *decide_arguments(servers, workload), "--out", out]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*map(str, command)], **pipes, **options)


def end(client: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status and stderr of a client, once it has ended."""
    _, printed = client.communicate(timeout=PATIENCE_S)
    return client.returncode, printed


def lines(out: Path) -> list[dict[str, Any]]:
    """Return the requests on disk, a line that is still being written left out."""
    path = out / "requests.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_until(condition: Callable[[], bool], client: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert client.poll() is None, end(client)
        assert time.monotonic() < give_up
        time.sleep(0.02)


def on_disk(out: Path, arm: str) -> Counter[int]:
    """Return how many answers of an arm to each prompt (by checksum) were written down."""
    return Counter(crc32(json.dumps(row["prompt_id"]).encode()) for row in lines(out) if row["arm"] == arm)


def wait_for_written(
    servers: dict[str, Server], out: Path, client: subprocess.Popen[str], count: int = 34
) -> dict[str, Counter[int]]:
    """Return what the servers had answered at a moment in the middle of a turn, once all of that is on disk."""
    wait_until(lambda: len(lines(out)) >= count, client)
    answered = {name: server.answered() for name, server in servers.items()}
    wait_until(lambda: all(answered[name] <= on_disk(out, name) for name in answered), client)
    return answered


def check_cut(run: Run) -> None:
    """See that a run says that it was stopped, and what it lacks."""
    rest, missing = describe_unmeasured(conclude_run(run).decision)[:2]
    assert "verdicts are those so far" in rest
    assert "repetitions" in missing


def resume(out: Path) -> None:
    """Go on with a run to its end; what it then finds about a busy machine is not the point."""
    result = CliRunner().invoke(main, ["decide", "--resume", str(out)])
    assert result.exit_code in (0, 1), result.output
    check_whole(out)


def check_whole(out: Path) -> None:
    """See that nothing is missing and nothing was measured twice, whatever was taken again on a busy machine."""
    run = RunDirectory(out).read()
    turns = Counter((turn.arm, turn.repeat, turn.block, turn.attempt) for turn in run.turns)
    assert set(turns.values()) == {1}
    first = {turn[:3] for turn in turns if turn[3] == 0}
    assert first == {(arm, repeat, 0) for arm in SCRIPTS for repeat in range(1, PASSES + 1)}
    assert sum(answer.measured for answer in run.answers) == len(turns) * TURN
    assert all("interrupted" in line for line in describe_unmeasured(conclude_run(run).decision))
    assert not (out / "reserved").exists()


def test_a_server_that_is_killed(servers: dict[str, Server], workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    client = measure(servers, workload, out)
    answered = wait_for_written(servers, out, client)
    servers["faster"].kill()
    status, printed = end(client)
    assert status == 3
    assert "Traceback" not in printed
    assert re.search(r"error: .*faster: .*(broke|does not answer)", printed)
    assert f"draftwise decide --resume {out}" in printed
    assert all(answered[name] <= on_disk(out, name) for name in answered)
    check_cut(RunDirectory(out).read())
    servers["faster"] = servers["faster"].restart()
    resume(out)


def test_a_client_that_is_killed(servers: dict[str, Server], workload: Path, tmp_path: Path) -> None:
    """SIGKILL: no way to tidy up."""
    out = tmp_path / "run"
    client = measure(servers, workload, out)
    answered = wait_for_written(servers, out, client)
    client.kill()
    _, printed = end(client)
    assert f"If this run is killed, continue with: draftwise decide --resume {out}" in printed
    assert all(answered[name] <= on_disk(out, name) for name in answered)
    run = RunDirectory(out).read()
    assert 0 < len(run.turns) < len(SCRIPTS) * PASSES
    assert len(run.answers) + run.num_unfinished == len(lines(out))
    check_cut(run)
    resume(out)


def test_a_client_that_is_asked_to_stop(servers: dict[str, Server], workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    client = measure(servers, workload, out)
    answered = wait_for_written(servers, out, client)
    client.send_signal(signal.SIGTERM)
    status, printed = end(client)
    assert status == 130, printed
    assert f"draftwise decide --resume {out}" in printed
    assert all(answered[name] <= on_disk(out, name) for name in answered)
    assert (out / "report.html").exists()
    assert not (out / "reserved").exists()
    resume(out)


def limit_files(size: int) -> Callable[[], None]:
    """Return what makes every file of a process end at a size, as a quota does."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_files_that_may_not_grow(servers: dict[str, Server], workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    client = measure(servers, workload, out, preexec_fn=limit_files(40_000))
    status, printed = end(client)
    assert status == 3
    assert "Traceback" not in printed
    assert re.search(r"cannot be written \((File too large|No space left on device)\)\. Everything measured", printed)
    assert f"draftwise decide --resume {out}" in printed
    assert len(lines(out)) > 20
    resume(out)


IN_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=$SIZE none "$DISK"
measure() {
  set +e
  "$PYTHON" -c "$UNPLOTTED" decide "$@" >"$KEPT/table" 2>"$KEPT/printed"
  echo $? >"$KEPT/status"
  set -e
}
measure "$@" --out "$DISK/run"
cp -r "$DISK/run" "$KEPT/full"
mv "$KEPT/printed" "$KEPT/printed.full"
mv "$KEPT/status" "$KEPT/status.full"
test -z "$RESUME" && exit
mount -o remount,size=64m "$DISK"
measure --resume "$DISK/run"
cp -r "$DISK/run" "$KEPT/run"
"""
"""A disk that fills up, then grows if RESUME is set; it is gone with its namespace, so that all of it is copied out."""


def can_mount() -> bool:
    """Return whether this user may have a file system of its own (Linux with user namespaces)."""
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="needs user namespaces")
@pytest.mark.parametrize(("size", "grows"), [("8260k", True), ("100k", False)])
def test_a_disk_that_fills_up(
    servers: dict[str, Server], workload: Path, tmp_path: Path, size: str, grows: bool
) -> None:
    """With room for the reserved space and little more, and without even that."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    places = {"SIZE": size, "DISK": str(disk), "KEPT": str(kept), "PYTHON": sys.executable}
    places |= {"UNPLOTTED": UNPLOTTED, "RESUME": "yes" if grows else ""}
    arguments = decide_arguments(servers, workload)
    script = ["unshare", "-rm", "sh", "-c", IN_A_SMALL_DISK, "sh", *map(str, arguments)]
    subprocess.run(script, env=os.environ | places, check=True, timeout=2 * PATIENCE_S)
    printed = (kept / "printed.full").read_text()
    assert (kept / "status.full").read_text() == "3\n"
    assert "Traceback" not in printed
    assert f"draftwise decide --resume {disk / 'run'}" in printed
    full = RunDirectory(kept / "full").read()
    assert len(full.answers) + full.num_unfinished == len(lines(kept / "full")) > 0
    if not grows:
        return
    assert (kept / "status").read_text() in ("0\n", "1\n"), (kept / "printed").read_text()
    check_whole(kept / "run")
