"""`draftwise rollback`: the commands of a folder, and running them through programs that stand in for the real ones."""

import os
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.support.adopted import IMAGES

from draftwise.cli import main
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order

SETUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="0.26.0",
    device=Device(name="GPU", kind="cuda"),
    spec=SpecConfig(method="ngram", num_speculative_tokens=5),
)
PROGRAMS = {"kubernetes": "kubectl", "compose": "docker", "systemd": "sudo"}


def run(*arguments: str | Path, answer: str = "") -> Result:
    return CliRunner().invoke(main, ["rollback", *map(str, arguments)], input=answer, catch_exceptions=False)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a folder whose name has to be quoted."""
    folder = tmp_path / "a folder"
    deploy(make_order(SETUP, name="llama"), "kubernetes").write(folder)
    return folder


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs on PATH that write down how they were called, and fail at words that stand in FAIL."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name in PROGRAMS.values():
        program = programs / name
        program.write_text(
            f'#!/bin/sh\necho "{name} $*" >> "{calls}"\n'
            'case "$*" in *"${FAIL:-nothing fails}"*) exit "${CODE:-1}";; esac\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin:/bin")
    return calls


@pytest.mark.parametrize("to", TARGETS)
def test_the_commands_are_printed_with_names_filled_in(to: str, tmp_path: Path) -> None:
    deploy(make_order(SETUP, name="llama", image=IMAGES.get(to, "")), to).write(tmp_path / "out")
    shown = run(tmp_path / "out").stdout
    file = f"{tmp_path / 'out'}/rollback{TARGETS[to].suffix}"
    assert shown.index("Go back.") < shown.rindex(file) < shown.index("Remove the twin")
    assert ("restarts in place" in shown) == TARGETS[to].in_place
    assert "{" not in shown
    assert re.search(rf"It leaves behind: {re.escape(TARGETS[to].leaves) or '[A-Z]'}", shown)
    assert "brings speculation back" in shown


@pytest.mark.parametrize("to", TARGETS)
def test_the_name_that_clients_use_stays_and_one_command_goes_back(to: str, tmp_path: Path) -> None:
    order = make_order(SETUP, name="llama", image=IMAGES.get(to, ""))
    files = deploy(order, to).files
    spec, back = (files[f"{name}{TARGETS[to].suffix}"] for name in ("spec", "rollback"))
    assert "llama-plain" not in back
    assert "speculative" in spec
    assert "speculative" not in back
    if not spec.startswith("#"):
        before, after = (
            {(each.get("kind"), each.get("metadata", {}).get("name"), str(each.get("spec", {}).get("selector")))
             for each in yaml.safe_load_all(text)}
            for text in (spec, back)
        )  # fmt: skip
        assert before == after
    deploy(order, to).write(tmp_path / "out")
    file = f"{tmp_path / 'out'}/rollback{TARGETS[to].suffix}"
    started = TARGETS[to].apply.format(file=file, name="llama", startup=1200)
    assert started in run(tmp_path / "out").stdout


@pytest.mark.parametrize(("to", "program"), PROGRAMS.items())
def test_each_platform_goes_back_through_its_program(to: str, program: str, tmp_path: Path, stub: Path) -> None:
    deploy(make_order(SETUP, name="llama", image=IMAGES.get(to, "")), to).write(tmp_path / "out")
    assert run(tmp_path / "out", "--apply", "--yes").exit_code == 0
    called = stub.read_text()
    assert all(line.startswith(f"{program} ") for line in called.splitlines())
    assert f"rollback{TARGETS[to].suffix}" in called
    assert f"spec{TARGETS[to].suffix}" not in called


@pytest.mark.parametrize("to", ["compose", "systemd"])
def test_on_one_host_the_gap_is_said_before_anything_runs(to: str, tmp_path: Path, stub: Path) -> None:
    folder = tmp_path / "out"
    deploy(make_order(SETUP, name="llama"), to).write(folder)
    told = run(folder, "--apply", "--yes").stdout
    assert stub.exists()
    assert told.index("nothing answers there for up to") < told.index("Commit rollback")


def test_the_difference_is_shown_before_the_question(made: Path, stub: Path) -> None:
    result = run(made, "--apply", answer="n\n")
    assert result.exit_code == 130
    assert stub.read_text() == f"kubectl diff -f {made}/rollback.yaml\n"
    assert "--speculative-config=" in result.stdout.split("Run: kubectl apply")[0]
    assert run(made, "--apply", answer="y\n").exit_code == 0
    assert stub.read_text().splitlines()[2:] == [
        f"kubectl apply -f {made}/rollback.yaml",
        "kubectl rollout status deployment/llama --timeout=1200s",
    ]


def test_the_twin_goes_only_when_that_is_asked_for(made: Path, stub: Path) -> None:
    run(made, "--apply", "--yes")
    assert "delete" not in stub.read_text()
    run(made, "--remove", "--yes")
    assert stub.read_text().splitlines()[-1] == f"kubectl delete -f {made}/plain.yaml"


def test_a_difference_is_no_failure(made: Path, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "diff -f")
    assert run(made, "--apply", "--yes").exit_code == 0
    monkeypatch.setenv("CODE", "2")
    assert run(made, "--apply", "--yes").exit_code == 3
    assert "apply" not in stub.read_text().splitlines()[-1]


def test_a_refusal_stops_everything_behind_it(made: Path, stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "apply -f")
    result = run(made, "--apply", "--yes")
    assert result.exit_code == 3
    assert "kubectl apply -f" in result.stderr
    assert "the later commands did not run" in result.stderr
    assert "rollout" not in stub.read_text()


def test_a_program_that_is_missing_is_named(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = run(made, "--apply", "--yes")
    assert result.exit_code == 3
    assert "kubectl cannot be run" in result.stderr


def test_files_that_were_changed_are_not_applied(made: Path, stub: Path) -> None:
    (made / "plain.yaml").write_text("kind: Namespace\n")
    result = run(made, "--apply", "--yes")
    assert result.exit_code == 2
    assert "has changed since the folder was written" in result.stderr
    assert not stub.exists()


def test_a_folder_of_another_kind_is_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(tmp_path / "out").exit_code == 2
    assert run(tmp_path / "gone").exit_code == 2
