"""`draftwise inspect` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main

BUNDLE = Path(__file__).parents[2] / "bundle"
TARGET = str(BUNDLE / "target")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["inspect", *args])


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A drafter two of whose tokens have changed places."""
    folder = Path(shutil.copytree(BUNDLE / "draft_model", tmp_path / "draft"))
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    one, two = list(vocab)[300:302]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "name", ["draft_model", "eagle", "eagle3", "p_eagle", "dflash", "medusa", "mlp_speculator", "mtp"]
)
def test_bundled_drafters_fit(name: str) -> None:
    result = run(str(BUNDLE / name), "--target", TARGET)
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().endswith("they fit")
    shown = {"p_eagle": "eagle3 head, parallel", "mtp": "MTP modules", "draft_model": "language model"}
    assert shown.get(name, f"{name} head") in result.output


def test_a_target_alone() -> None:
    result = run(TARGET)
    assert result.exit_code == 0
    assert "26.22M" in result.output
    assert "52.4 MB in 4 files" in result.output


def test_errors_make_the_exit_code_one(broken: Path) -> None:
    result = run(str(broken), "--target", TARGET)
    assert result.exit_code == 1
    assert "different (4,094 equal, 2 different)" in result.output
    assert "tokenizers-differ" in result.output
    assert "fix:" in result.output
    assert result.output.rstrip().endswith("1 error, 0 warnings")


def test_json_says_the_same(broken: Path) -> None:
    result = run(str(broken), "--target", TARGET, "--json")
    content = json.loads(result.stdout)
    assert content["drafter"]["method"] == "draft_model"
    assert content["tokenizers"]["num_differing"] == 2
    assert [finding["code"] for finding in content["findings"]] == ["tokenizers-differ"]
    assert result.exit_code == 1
    alone = json.loads(run(TARGET, "--json").stdout)
    assert (alone["num_bytes"], alone["findings"]) == (52_446_208, [])


def test_rules_follow_the_release() -> None:
    early = run(str(BUNDLE / "eagle3"), "--target", TARGET, "--vllm", "0.11.0")
    assert early.exit_code == 1
    assert "layer-ids-ignored" in early.output
    assert run(str(BUNDLE / "eagle3"), "--target", TARGET, "--vllm", "0.19.1").exit_code == 0


def test_a_wrong_directory_is_a_message(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "is not a directory" in result.stderr
    assert "Traceback" not in result.output
