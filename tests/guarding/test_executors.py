"""Commands and patches, and how --act names them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.core import BackendError, InvalidSetup, UnreadableSource
from draftwise.core.action import Action, Step
from draftwise.guarding.executors import CommandExecutor, parse_executor

SHIFT = Action(step=Step.SHIFT, replicas=("http://a:1", "http://b:2"), cause="c", reason="It does not pay.")
BACK = Action(step=Step.ROLL_BACK, cause="c", reason="Speculation has not paid for 61 minutes.")


def test_a_command_is_run_for_each_replica_without_a_shell(tmp_path):
    script = tmp_path / "act.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')")
    told = tmp_path / "told it; $(x)"
    CommandExecutor("command", f"{sys.executable} {script} '{told}' {{step}} --url={{replica}}").carry_out(SHIFT)
    assert told.read_text() == "shift --url=http://a:1\nshift --url=http://b:2\n"


def test_a_command_that_fails_says_what_it_said():
    failing = CommandExecutor("command", f"{sys.executable} -c 'raise SystemExit(\"no access\")' {{step}} {{replica}}")
    with pytest.raises(BackendError, match="exit code 1: no access"):
        failing.carry_out(SHIFT)
    with pytest.raises(BackendError, match="cannot be run"):
        CommandExecutor("command", "no-such-program-here {step} {replica}").carry_out(SHIFT)


@pytest.mark.parametrize("text", ["kubectl drain", "act {step}", "act '{step} {replica}", ""])
def test_a_command_has_to_be_told_what_and_where(text):
    with pytest.raises(InvalidSetup):
        CommandExecutor("command", text)


@pytest.mark.parametrize("text", ["haproxy", "haproxy=", "nginx=/run/x", "command="])
def test_unknown_executors_are_refused(text, tmp_path):
    with pytest.raises(InvalidSetup, match="is not a known executor"):
        parse_executor(text, patch_file=tmp_path / "p")


def deployed(folder: Path) -> Path:
    folder.mkdir(parents=True)
    sides = {"spec": {"file": "spec.yaml", "name": "llama"}, "plain": {"file": "plain.yaml", "name": "llama-plain"}}
    sides["back"] = {"file": "rollback.yaml", "name": "llama"}
    record = {"format": 1, "to": "kubernetes", "platform_release": "", "startup_s": 600, "leaves": ""}
    (folder / "deployment.json").write_text(json.dumps(record | sides))
    (folder / "spec.yaml").write_text("args:\n- --speculative-config={}\n- --port=8000\n")
    (folder / "rollback.yaml").write_text("args:\n- --port=8000\n")
    return folder


def test_a_patch_is_what_git_applies(tmp_path):
    git = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run([*git, "init", "-q"], check=True)
    folder = deployed(tmp_path / "clusters" / "llama")
    patch = tmp_path / "state" / "guard.roll-back.patch"
    patch.parent.mkdir()
    parse_executor(f"patch={folder}", patch_file=patch).carry_out(BACK)
    assert patch.read_text().startswith("Speculation has not paid for 61 minutes.\n")
    subprocess.run([*git, "apply", str(patch)], check=True)
    assert (folder / "spec.yaml").read_text() == (folder / "rollback.yaml").read_text()
    subprocess.run([*git, "apply", "-R", str(patch)], check=True)
    assert "speculative" in (folder / "spec.yaml").read_text()


def test_a_patch_needs_a_folder_of_deploy(tmp_path):
    with pytest.raises(UnreadableSource):
        parse_executor(f"patch={tmp_path}", patch_file=tmp_path / "p")


def test_a_patch_that_cannot_be_written_is_no_success(tmp_path):
    executor = parse_executor(f"patch={deployed(tmp_path / 'd')}", patch_file=tmp_path / "no" / "folder" / "p")
    with pytest.raises(BackendError, match="cannot be written"):
        executor.carry_out(BACK)
