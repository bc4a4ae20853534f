"""`draftwise guard`: exit codes, what it shows, its JSON, and the way back; the service is seen in virtual time."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator
from tests.cli.test_schema import close, schema_of
from tests.support.guarding import window
from tests.support.production import SPEC
from tests.support.watched import make_baseline, serving_counters

from draftwise.cli import main
from draftwise.core import Finding, Severity
from draftwise.watching.watcher import Snapshot, Watcher

A, B, PLAIN = "http://a:8000", "http://b:8000", "http://plain:8000"


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float | None]:
    """Tokens per step by URL; None of a server that does not answer."""
    told: dict[str, float | None] = {A: 1.9, PLAIN: 1.0}

    async def snapshots(self: Watcher, interval_s: float) -> AsyncGenerator[Snapshot]:
        at_s = 1e9
        while True:
            at_s += interval_s
            seen = [replace(window(value, at_s=at_s, every_s=interval_s), instance=url)
                    for url, value in told.items() if value is not None]  # fmt: skip
            lost = (Finding(code="server-unread", severity=Severity.ERROR, message="It does not answer.", where=url)
                    for url, value in told.items() if value is None)  # fmt: skip
            yield Snapshot(at_s=at_s, windows=tuple(seen), recent=(), findings=tuple(lost))

    monkeypatch.setattr(Watcher, "snapshots", snapshots)
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "cache"))
    return told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "baseline.json").write_text(make_baseline().to_json())
    (tmp_path / "act.py").write_text("import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["guard", *map(str, arguments)])


def guard(folder: Path, *arguments: object, urls: tuple[str, ...] = (A,)) -> Result:
    given = ("--plain", PLAIN, "--baseline", folder / "baseline.json", "--state", folder / "g.json", "--every", 2)
    return run(*urls, *given, "--once", *arguments)


def command(folder: Path) -> str:
    return f"command={sys.executable} {folder / 'act.py'} {folder / 'told'} {{step}} {{replica}}"


def test_a_healthy_service(truth, folder):
    result = guard(folder)
    assert result.exit_code == 0, result.output
    assert "drift-not-learned" in result.output
    assert result.stderr.endswith("No step is proposed.\n")
    assert not (folder / "g.steps.jsonl").exists()


def test_it_proposes_what_it_was_not_given_the_means_for(truth, folder):
    truth[A] = 1.1
    result = guard(folder)
    assert result.exit_code == 1
    assert f"proposes  shift  {A}: One replica emits fewer tokens per step than the break-even" in result.output
    assert json.loads((folder / "g.steps.jsonl").read_text())["outcome"] == "proposed"


def test_it_acts_and_undoes(truth, folder):
    truth[A] = 1.1
    result = guard(folder, "--act", command(folder))
    assert result.exit_code == 1
    assert f"does      shift  {A}" in result.output
    undone = run("--state", folder / "g.json", "--undo")
    assert undone.exit_code == 0
    assert undone.output.startswith(f"{A} is in the traffic again")
    assert (folder / "told").read_text() == f"shift {A}\nrelease {A}\n"
    rows = map(json.loads, (folder / "g.steps.jsonl").read_text().splitlines())
    assert [row["outcome"] for row in rows] == ["begun", "done", "undone"]
    assert run("--state", folder / "g.json", "--undo").output == "All steps are undone.\n"


def test_what_was_undone_is_left_alone_until_it_is_acknowledged(truth, folder):
    truth[A] = 1.1
    guard(folder, "--act", command(folder))
    run("--state", folder / "g.json", "--undo")
    result = guard(folder, "--act", command(folder))
    assert "step-undone-elsewhere" in result.output
    assert "shift  http" not in result.output
    assert run("--state", folder / "g.json", "--acknowledge").exit_code == 0
    assert "step-undone-elsewhere" not in guard(folder, "--act", command(folder)).output


def test_min_spec_is_what_the_plain_ones_cannot_stand_in_for(truth, folder):
    truth |= {A: 1.1, B: 1.15}
    guard(folder, "--act", command(folder), urls=(A, B))
    assert (folder / "told").read_text() == f"shift {A}\n"


def test_a_failing_step_is_exit_code_3(truth, folder):
    truth[A] = 1.1
    result = guard(folder, "--act", "command=no-such-program-here {step} {replica}")
    assert result.exit_code in (1, 3)
    assert "step-failed" in result.output


def test_no_server_that_answers(truth, folder):
    truth |= {A: None, PLAIN: None}
    result = guard(folder, "--act", command(folder))
    assert result.exit_code == 3
    assert "nothing-is-read" in result.output
    assert not (folder / "told").exists()


def test_without_a_break_even_it_says_so(truth, folder):
    truth[A] = 1.0
    result = run(A, "--state", folder / "g.json", "--once", "--act", command(folder))
    assert "Reading for 90 s, enough for one decision: 3 windows" in result.stderr
    assert result.exit_code == 1
    assert "break-even-unknown" in result.output
    assert not (folder / "told").exists()
    missing = ("When to roll back: the run measured vLLM 0.25.0.",)
    (folder / "baseline.json").write_text(make_baseline(rollback=(), missing=missing).to_json())
    assert "break-even is unknown (the run measured vLLM 0.25.0), so" in " ".join(guard(folder).output.split())


def test_json_is_what_its_schema_says(truth, folder):
    truth |= {A: 1.1, B: 1.9}
    result = guard(folder, "--json", "--act", command(folder), urls=(A, B))
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    validator = Draft7Validator(close(schema_of("guard")))
    assert [error.message for line in lines for error in validator.iter_errors(line)] == []
    assert any(action["executes"] for line in lines for action in line["actions"])
    assert lines[-1]["replicas"][0] == {
        "url": A, "pool": "spec", "answers": True, "tokens_per_step": 1.1, "out_of_traffic": "shift",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "Give the URLs"),
        ((A, "--undo"), 2, "alone"),
        (("--undo", "--acknowledge"), 2, "alone"),
        ((A, "--plain", f"{A}/v1"), 2, "given twice"),
        ((A, "--act", "nginx=x"), 2, "--act nginx=x is not a known executor"),
        ((A, "--probe"), 2, "Compare it only with the same probe of a healthy server"),
        ((A, "--act", "haproxy=/no/socket"), 3, "level admin"),
        ((A, "--baseline", "no-such-file"), 2, "cannot be read"),
        (("a:8000",), 2, "http"),
    ],
)
def test_what_is_asked_in_vain(tmp_path, arguments, code, text):
    result = run(*arguments, "--state", tmp_path / "g.json")
    assert result.exit_code == code, result.output
    assert text in result.output


def test_another_guard_of_the_same_replica_is_refused(truth, folder):
    guard(folder)  # makes the folder of the leases, and gives them back without a trace
    assert list((folder / "cache" / "guarded").iterdir()) == []
    lease = folder / "cache" / "guarded" / hashlib.sha256(A.encode()).hexdigest()[:16]
    holder: dict[str, Any] = {"token": "other", "host": socket.gethostname(), "pid": os.getpid(), "until_s": 2e9}
    lease.write_text(json.dumps(holder))
    result = run(A, "--state", folder / "other.json", "--once")
    assert result.exit_code == 2
    assert f"already guards {A}" in result.output


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("verb", ["watch", "guard"])
@pytest.mark.parametrize("shell", [(), ("sh", "-c", 'trap "" INT; exec "$@"', "sh")], ids=["", "in-the-background"])
def test_a_pod_that_is_stopped_ends_without_a_lease(verb, shell, tmp_path):
    options = {"watch": ("--interval", "0.5"), "guard": ("--every", "0.5", "--state", str(tmp_path / "guard.json"))}
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with serving_counters(SPEC) as (url,):
        words = [*shell, sys.executable, "-m", "draftwise", verb, url, *options[verb], "--json"]
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert json.loads(process.stdout.readline())
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode in (0, 1, 3, 130)  # of its last look, or interrupted where the shell ignores SIGINT
    assert [each for each in tmp_path.rglob("*") if each.suffix in (".lease", ".lock")] == []
    assert [each for each in (tmp_path / "cache").rglob("*") if each.is_file()] == []
