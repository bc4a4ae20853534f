"""What `examples/` shows runs: switch scripts with stand-ins for their commands, notebooks, recipes of CI."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SWITCH = EXAMPLES / "switch"
STAND_IN = """#!/usr/bin/env bash
echo "${0##*/} $*" >> "$CALLS"
[ "${0##*/} $1" != "${FAILS:-}" ]
"""
ENDINGS = {"docker": "args", "compose": "yaml", "systemd": "conf", "kubectl": "yaml"}


def switch(name: str, folder: Path, variant: str, **variables: str) -> tuple[int, list[str], str]:
    """Run a switch script; return its exit code, the commands that it called and its errors."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    for command in ("docker", "systemctl", "kubectl"):
        (bin_ / command).write_text(STAND_IN)
        (bin_ / command).chmod(0o755)
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(SWITCH / f"{name}.sh"), variant], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": path, "CALLS": str(calls), "UNITS": str(folder / "units")} | variables,
    )  # fmt: skip
    return done.returncode, calls.read_text().splitlines() if calls.exists() else [], done.stderr


@pytest.fixture
def variants(tmp_path: Path) -> Path:
    for ending in set(ENDINGS.values()):
        (tmp_path / f"fast.{ending}").write_text('--model\ngpt2\n\n--speculative-config\n{"method": "ngram"}\n')
    return tmp_path


class TestSwitchScripts:
    @pytest.mark.parametrize("name", ENDINGS)
    def test_a_variant_without_a_file_changes_nothing(self, name: str, variants: Path) -> None:
        code, calls, errors = switch(name, variants, "plain", IMAGE="vllm")
        assert (code, calls) == (2, [])
        assert f"No file plain.{ENDINGS[name]}" in errors

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            (
                "docker",
                [
                    "docker rm --force vllm",
                    "docker run --detach --name vllm --publish 127.0.0.1:8000:8000 --gpus all --ipc host vllm "
                    '--model gpt2 --speculative-config {"method": "ngram"}',
                ],
            ),
            (
                "compose",
                ["docker compose --file compose.yaml --file fast.yaml up --detach --no-deps --force-recreate vllm"],
            ),
            ("systemd", ["systemctl daemon-reload", "systemctl restart vllm.service"]),
            (
                "kubectl",
                [
                    "kubectl apply --namespace default --filename fast.yaml",
                    "kubectl rollout status --namespace default deployment/vllm --timeout 15m",
                ],
            ),
        ],
    )
    def test_a_variant_is_brought_up(self, name: str, expected: list[str], variants: Path) -> None:
        assert switch(name, variants, "fast", IMAGE="vllm") == (0, expected, "")
        if name == "systemd":
            assert (variants / "units/vllm.service.d/90-draftwise.conf").read_text().startswith("--model")

    @pytest.mark.parametrize(
        ("name", "fails"),
        [("docker", "docker run"), ("compose", "docker compose"), ("systemd", "systemctl daemon-reload"),
         ("systemd", "systemctl restart"), ("kubectl", "kubectl apply"), ("kubectl", "kubectl rollout")],
    )  # fmt: skip
    def test_a_command_that_fails_ends_the_script(self, name: str, fails: str, variants: Path) -> None:
        code, calls, _ = switch(name, variants, "fast", IMAGE="vllm", FAILS=fails)
        assert code == 1
        assert calls[-1].startswith(fails)

    def test_docker_needs_an_image_before_it_removes_anything(self, variants: Path) -> None:
        code, calls, errors = switch("docker", variants, "fast")
        assert (code, calls) == (1, [])
        assert "set IMAGE" in errors


@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(notebook.parent)
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert (document["nbformat"], {cell["cell_type"] for cell in document["cells"]}) == (4, {"markdown", "code"})
    names: dict[str, object] = {}
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "outputs are not kept: they would age"
            text = "".join(cell["source"])
            *before, last = text.splitlines()
            exec(text, names)
            if re.fullmatch(r"\w+", last):  # a notebook shows it
                assert str(names[last]).strip(), before
                assert names[last]._repr_html_().strip()  # type: ignore[attr-defined]


class TestUpgradeOfAnImage:
    """The step that a pull request of Renovate or Dependabot starts."""

    COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v{release}
    command: >
      --model gpt2 {more}
      --speculative-config '{{"method": "ngram", "num_speculative_tokens": 3}}'
"""

    def judge(self, folder: Path, before: str, after: str, more: str = "") -> subprocess.CompletedProcess[str]:
        steps = yaml.safe_load((EXAMPLES / "ci/github-upgrade.yaml").read_text())["jobs"]["upgrade"]["steps"]
        (step,) = (each for each in steps if "draftwise upgrade" in each.get("run", ""))
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
        subprocess.run([*git, "init", "--quiet"], check=True)
        for release in (before, after):
            (folder / "compose.yaml").write_text(self.COMPOSE.format(release=release, more=more))
            (folder / "other.yaml").write_text(f"a: {release}\n")
            subprocess.run([*git, "add", "compose.yaml", "other.yaml"], check=True)
            subprocess.run([*git, "commit", "--quiet", "--message", release], check=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]], cwd=folder,
            env=os.environ | {"BASE": "HEAD~1", "PATH": path}, capture_output=True, text=True, check=True,
        )  # fmt: skip

    def test_its_comment_says_what_changes(self, tmp_path: Path) -> None:
        self.judge(tmp_path, "0.19.1", "0.33.0")
        comment = (tmp_path / "comment.md").read_text()
        assert comment.startswith("### compose.yaml: vLLM 0.19.1 to 0.33.0\n")
        assert "services.llm" in comment
        assert "other.yaml" not in comment
        assert not (tmp_path / "failed").exists()

    def test_a_setup_that_breaks_fails_the_job(self, tmp_path: Path) -> None:
        self.judge(tmp_path, "0.19.1", "0.33.0", more="--swap-space 4")
        assert (tmp_path / "failed").read_text() == "compose.yaml: exit code 1\n"
        assert "--swap-space" in (tmp_path / "comment.md").read_text()

    def test_nothing_is_commented_where_the_release_stays(self, tmp_path: Path) -> None:
        self.judge(tmp_path, "0.33.0", "0.33.0 # the same")
        assert not (tmp_path / "comment.md").exists()


@pytest.mark.parametrize("path", sorted((EXAMPLES / "ci").glob("*.*ml")), ids=lambda path: path.name)
def test_recipes_are_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_hook_without_a_clone_is_the_hook() -> None:
    (ours,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (local,) = yaml.safe_load((EXAMPLES / "ci/pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    needs = local.pop("additional_dependencies")
    assert needs[:3] == ["--no-deps", "--no-compile", "PACKAGE"]
    assert local.items() <= ours.items()


def test_the_hook_imports_nothing_that_it_does_not_install(tmp_path: Path) -> None:
    (local,) = yaml.safe_load((EXAMPLES / "ci/pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    installed = {name.replace("-", "_") for name in local["additional_dependencies"][3:]} | {"draftwise"}
    modules = {
        module for module, names in packages_distributions().items() if not installed & set(map(module_name, names))
    }
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(modules)!r}))\n"
        "from draftwise.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    source = ROOT / "tests/static/documented/compose.yaml"
    words = [*local["entry"].split()[1:], str(source)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted, with changes" in done.stdout


def module_name(package: str) -> str:
    return package.lower().replace("-", "_")
