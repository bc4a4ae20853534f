"""The hook, the action and the job that repositories take over: their YAML, and the command lines in them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
GOOD = "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    command: [--model, gpt2]\n"
BAD = GOOD.replace("gpt2]", "gpt2, --no-such-flag]")


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def run(script: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | variables
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "compose.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text("a: 1\n")
    return tmp_path


class TestPreCommit:
    def test_the_hook_has_what_pre_commit_asks_for(self) -> None:
        (hook,) = load(".pre-commit-hooks.yaml")
        assert hook.keys() >= {"id", "name", "entry", "language", "files"}
        assert hook["language"] == "python"
        for name, fits in (("a/b.yaml", True), ("b.yml", True), ("x.service", True), ("run.sh", True), ("a.py", False)):
            assert bool(re.search(hook["files"], name)) is fits

    def test_its_command_takes_the_files_that_changed(self, repository: Path) -> None:
        (hook,) = load(".pre-commit-hooks.yaml")
        assert run(f"{hook['entry']} other.yaml deploy/compose.yaml", repository).returncode == 0
        assert run(f"{hook['entry']} other.yaml", repository).returncode == 0
        (repository / "deploy" / "compose.yaml").write_text(BAD)
        done = run(f"{hook['entry']} other.yaml deploy/compose.yaml", repository)
        assert done.returncode == 1
        assert done.stdout == "deploy/compose.yaml:2 services.llm gpt2: vLLM 0.33.0: rejected (unknown-flag)\n"


class TestAction:
    def test_it_is_a_composite_action(self) -> None:
        action = load("action.yml")
        assert action.keys() == {"name", "description", "inputs", "runs"}
        assert action["runs"]["using"] == "composite"
        assert all(given["description"] for given in action["inputs"].values())
        for step in action["runs"]["steps"]:
            assert step["shell"] == "bash"
            assert "${{" not in step["run"], "an input in a script is text that a shell would run"
            named = {name for value in step["env"].values() for name in re.findall(r"inputs\.([\w-]+)", value)}
            assert named <= action["inputs"].keys()
            used = set(re.findall(r"\$\{?([A-Z_]+)", step["run"]))
            assert used == step["env"].keys()

    def check(self, folder: Path, **inputs: str) -> "subprocess.CompletedProcess[str]":
        action = load("action.yml")
        values = {name: given["default"] for name, given in action["inputs"].items()} | inputs
        step = action["runs"]["steps"][-1]
        filled = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], value)
            for name, value in step["env"].items()
        }
        return run(step["run"], folder, **filled | {"DRAFTWISE": str(BIN / "draftwise")})

    def test_a_folder_that_is_right_passes(self, repository: Path) -> None:
        done = self.check(repository)
        assert (done.returncode, "::error" in done.stdout) == (0, False)

    def test_what_is_refused_is_an_annotation_of_its_line(self, repository: Path) -> None:
        (repository / "deploy" / "compose.yaml").write_text(BAD)
        done = self.check(repository, sources="deploy\n\nother.y*ml\n", sarif="check.sarif", vllm="0.32.0")
        assert done.returncode == 1, done.stderr
        assert done.stdout.startswith(
            "::error file=deploy/compose.yaml,line=4,title=draftwise%3A unknown-flag::vLLM 0.32.0"
        )
        assert json.loads((repository / "check.sarif").read_text())["runs"][0]["results"]
        assert self.check(repository, **{"fail-on": "never"}).returncode == 0

    def test_a_file_that_is_not_there_fails(self, repository: Path) -> None:
        assert self.check(repository, sources="deploy/vllm.yaml").returncode == 2


class TestGitLab:
    def script(self) -> tuple[dict[str, Any], str]:
        job = load(".ci/draftwise.gitlab-ci.yml")["draftwise"]
        return job, "\n".join(job["script"])

    def test_the_report_is_the_one_that_the_job_hands_over(self, repository: Path) -> None:
        job, script = self.script()
        assert job["artifacts"]["when"] == "always"
        variables = {name: str(value) for name, value in job["variables"].items()}
        assert run(script, repository, **variables).returncode == 0
        (repository / "deploy" / "compose.yaml").write_text(BAD)
        done = run(script, repository, **variables | {"DRAFTWISE_SOURCES": "deploy other.yaml deploy/*.yaml"})
        assert done.returncode == 1, done.stderr
        report = json.loads((repository / job["artifacts"]["reports"]["codequality"]).read_text())
        assert {issue["location"]["path"] for issue in report} >= {"deploy/compose.yaml"}
        assert len({issue["fingerprint"] for issue in report}) == len(report)

    def test_it_installs_what_it_runs(self) -> None:
        job, script = self.script()
        assert shlex.split(job["before_script"][0])[:2] == ["pip", "install"]
        assert script.startswith("draftwise check ")
