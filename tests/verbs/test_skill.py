"""The skill for agents: valid, generated, and with the tools it answers forty questions of operators."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import draftwise
from draftwise.cli import main
from draftwise.core.progress import Silent
from draftwise.knowledge.methods import all_methods
from draftwise.machine.confinement import Confinement
from draftwise.plan.skill_pages import write_skill
from draftwise.verbs.tool_calls import Permissions, call

QUESTIONS = json.loads((Path(__file__).parent / "questions.json").read_text())["questions"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skills")
    result = CliRunner().invoke(main, ["skill", "install", str(folder)])
    assert result.exit_code == 0, result.output
    return folder / "draftwise"


def test_the_skill_is_valid(installed: Path) -> None:
    validator = pytest.importorskip("skills_ref.validator", reason="skills-ref is not installed")
    assert validator.validate(installed) == []
    assert len((installed / "SKILL.md").read_text().splitlines()) < 500


def test_every_file_is_named_in_the_head_and_there(installed: Path) -> None:
    head = (installed / "SKILL.md").read_text()
    named = set(re.findall(r"\]\((references/[\w-]+\.md)\)", head))
    assert named == {path.relative_to(installed).as_posix() for path in (installed / "references").iterdir()}
    assert set(write_skill()) == {p.relative_to(installed).as_posix() for p in installed.rglob("*") if p.is_file()}
    assert not re.search(r"(?<!\{)\{(?!\{|\.\.\.|\")\w+\}", head)


def test_the_references_are_the_tables() -> None:
    written = write_skill()
    assert all(f"| {name} |" in written["references/methods.md"] for name in all_methods())
    assert "vllm:spec_decode_num_drafts_total" in written["references/metrics.md"]
    assert "`tail-dead`" in written["references/troubleshooting.md"]
    assert max(map(len, written.values())) < 100_000


def test_commands_of_the_head_are_commands_of_the_program() -> None:
    for words in re.findall(r"`draftwise ([a-z-]+)((?: --[a-z-]+)*)", write_skill()["SKILL.md"]):
        assert main.get_command(None, words[0]) is not None, words  # type: ignore[arg-type]


def test_an_older_version_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    install = ["skill", "install", str(tmp_path), "--json"]
    assert CliRunner().invoke(main, install).exit_code == 0
    (tmp_path / "draftwise" / "SKILL.md").write_text("---\nname: draftwise\n---\nold")
    assert CliRunner().invoke(main, install).exit_code == 0
    assert "old" not in (tmp_path / "draftwise" / "SKILL.md").read_text().splitlines()
    (tmp_path / "draftwise" / "SKILL.md").write_text("somebody else's")
    refused = CliRunner().invoke(main, install)
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["code"]) == (2, "folder-exists")
    assert (tmp_path / "draftwise" / "SKILL.md").read_text() == "somebody else's"


def test_the_scripts_call_the_verbs(installed: Path, tmp_path: Path) -> None:
    stub = tmp_path / "draftwise"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} -m draftwise "$@"\n')
    stub.chmod(0o755)
    source = str(Path(draftwise.__file__).parents[1])
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": source}

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        script = installed / "scripts" / name
        return subprocess.run([script, *words], capture_output=True, text=True, check=False, env=env, cwd=tmp_path)

    assert run("smoke-check.sh", "http://127.0.0.1:1", "--interval", "0.2").returncode == 3
    assert json.loads(run("check-config.sh", "meta-llama/Llama-3.1-8B-Instruct").stdout)[0]["accepted"]
    assert run("upgrade.sh").returncode != 0


def make_declining_log() -> str:
    """Return an hour of vLLM's statistics in which the mean acceptance length falls evenly from 2.80 to 1.20."""
    lines = []
    for i in range(361):
        length = 2.8 - 1.6 * i / 360
        clock = f"{8 + i // 360:02}:{i // 6 % 60:02}:{i % 6 * 10:02}"
        accepted, rates = int(400 * (length - 1)), [(length - 1) * share for share in (0.43, 0.32, 0.25)]
        lines += [
            f"(APIServer pid=1) INFO 05-09 {clock} [loggers.py:259] Engine 000: Avg prompt throughput: 310.0 tokens/s, "
            f"Avg generation throughput: {40 * length:.1f} tokens/s, Running: 6 reqs, Waiting: 0 reqs, "
            "GPU KV cache usage: 21.0%, Prefix cache hit rate: 44.0%",
            f"(APIServer pid=1) INFO 05-09 {clock} [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
            f"{length:.2f}, Accepted throughput: {accepted / 10:.2f} tokens/s, Drafted throughput: 120.00 tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: 1200 tokens, Per-position acceptance rate: "
            f"{', '.join(f'{rate:.3f}' for rate in rates)}, Avg Draft acceptance rate: {accepted / 12:.1f}%",
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("row", QUESTIONS, ids=[row["question"][:60] for row in QUESTIONS])
def test_the_tools_hold_the_facts_of_a_right_answer(
    row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in row.get("files", {}).items():
        (tmp_path / name).write_text(make_declining_log() if text == "generated: decline" else text)
    monkeypatch.chdir(tmp_path)
    allowed = Permissions(files=Confinement.of(read=[tmp_path], write=[tmp_path]), folder=tmp_path)
    answers = [call(each["tool"], each["arguments"], Silent(), permissions=allowed) for each in row["calls"]]
    said = "\n".join(f"{each.text}\n{json.dumps(each.document)}" for each in answers)
    missing = [fact for fact in row["facts"] if not re.search(fact, said, re.IGNORECASE)]
    assert missing == [], said[:3000]


def test_there_are_forty_questions_and_an_answer_can_be_wrong(tmp_path: Path) -> None:
    assert len(QUESTIONS) == 40
    assert all(len(row["facts"]) >= 1 and row["calls"] for row in QUESTIONS)
    said = str(draftwise.explain("ngram"))
    assert sum(all(re.search(fact, said, re.IGNORECASE) for fact in row["facts"]) for row in QUESTIONS) <= 4
