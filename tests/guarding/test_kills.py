"""A guard and a roll-back that are killed at each of their steps: whoever starts them again ends where they should.

The guard's part takes a real HAProxy and processes under load; `make e2e` unpacks the program and names its folder.
"""

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import guard_drill
import pytest
from click.testing import CliRunner

from draftwise.cli import main
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import deploy, make_order

TOOLS = Path(os.environ.get("DRAFTWISE_TOOLS") or "no-tools") / "service"
PROGRAMS = {"kubernetes": "kubectl", "compose": "docker", "systemd": "sudo"}
SETUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="GPU", kind="cuda"),
    spec=SpecConfig(method="ngram", num_speculative_tokens=5),
)


class Relay(socketserver.ThreadingUnixStreamServer):
    """Passes orders on to HAProxy's socket, and kills a process before or after one of them."""

    daemon_threads = True

    def __init__(self, path: Path, real: Path) -> None:
        super().__init__(str(path), _Passing)
        self.real, self.kills, self.victim = real, "", 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def kill_at_order(self, when: str, process: subprocess.Popen[bytes]) -> None:
        self.victim, self.kills = process.pid, when


class _Passing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        relay, order = self.server, self.rfile.readline()
        assert isinstance(relay, Relay)
        kills = relay.kills if order.startswith(b"set server") else ""
        if kills == "before":
            os.kill(relay.victim, signal.SIGKILL)
            return
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(relay.real))
            line.sendall(order)
            answer = b"".join(iter(lambda: line.recv(65_536), b""))
        if kills == "after":
            os.kill(relay.victim, signal.SIGKILL)
        else:
            self.wfile.write(answer)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ExitStack]:
    if not (TOOLS / "root/usr/sbin/haproxy").is_file():
        pytest.skip("DRAFTWISE_TOOLS names no folder with haproxy: `make e2e` unpacks it")
    with ExitStack() as stack:
        yield stack


def list_done(drill: guard_drill.Drill) -> list[str]:
    return [each["outcome"] for each in drill.steps() if each["outcome"] != "proposed"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_guard_killed_at_an_order_and_an_undo_killed_at_its_own(when: str, tmp_path: Path, stage: ExitStack) -> None:
    drill = guard_drill.Drill(TOOLS.resolve(), tmp_path, stage)
    relay = Relay(tmp_path / "relay.sock", tmp_path / "haproxy.sock")
    stage.callback(relay.shutdown)
    drill.socket = relay.server_address
    threads = drill.load()
    try:
        guard = drill.guard()
        relay.kill_at_order(when, guard)
        drill.replicas["bad"].accepts = guard_drill.FAILED
        assert guard.wait(guard_drill.AT_MOST_S) == -signal.SIGKILL
        assert drill.is_out("bad") == (when == "after")
        assert list_done(drill) == ["begun"]

        # It is seen what came of the step; no second one is taken within the hour.
        relay.kills = ""
        guard = drill.guard()
        drill.settle()
        assert drill.is_out("bad") == (when == "after")
        assert list_done(drill) == ["begun"]
        latches = json.loads((tmp_path / "guard.json").read_text())["state"]["latches"]
        assert [each["is_confirmed"] for each in latches.values()] == [True] * (when == "after")
        guard.send_signal(signal.SIGINT)
        guard.wait(guard_drill.AT_MOST_S)

        undo = ("draftwise", "guard", "--state", "guard.json", "--undo")
        if when == "after":
            killed = drill.start("undo", sys.executable, "-m", *undo)
            relay.kill_at_order(when, killed)
            assert killed.wait(guard_drill.AT_MOST_S) == -signal.SIGKILL
            relay.kills = ""
        assert drill.start("undo", sys.executable, "-m", *undo).wait(guard_drill.AT_MOST_S) == 0
        assert not any(drill.is_out(name) for name in drill.replicas)
        served = drill.requests["bad"]
        guard_drill.wait_for(lambda: drill.requests["bad"] > served, "requests to the replica that is back")
    finally:
        drill.ended.set()
        for thread in threads:
            thread.join()
    assert drill.requests["lost"] == 0
    assert sum(drill.requests.values()) > 50


@pytest.mark.parametrize(("to", "program"), PROGRAMS.items())
def test_a_roll_back_killed_at_each_command_is_done_by_starting_it_again(
    to: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls, programs = tmp_path / "out", tmp_path / "calls", tmp_path / "programs"
    deploy(make_order(SETUP, name="llama"), to).write(folder)
    programs.mkdir()
    stub = programs / program
    stub.write_text(
        f'#!/bin/sh\necho "$*" >> "{calls}"\n[ "$(wc -l < "{calls}")" = "${{KILL:-0}}" ] && kill -9 $PPID\nexit 0\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin:/bin")
    words = ["rollback", str(folder), "--apply", "--yes"]

    def again() -> list[str]:
        calls.unlink(missing_ok=True)
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return calls.read_text().splitlines()

    whole, before = again(), sorted(folder.rglob("*"))
    assert any(f"rollback.{'service' if to == 'systemd' else 'yaml'}" in each for each in whole)
    for number in range(1, len(whole) + 1):
        calls.unlink()
        if not (process := os.fork()):
            os.environ["KILL"] = str(number)
            CliRunner().invoke(main, words)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
        assert calls.read_text().splitlines() == whole[:number]
        assert again() == whole
    assert sorted(folder.rglob("*")) == before
