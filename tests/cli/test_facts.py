"""`draftwise facts`: the list, adding and removing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from draftwise.cli import main
from draftwise.knowledge.vllm import Release, forget_added, get_release, releases

Add = Callable[..., Release]
Wheel = Callable[..., Path]
CONFIG = """
    from typing import Literal
    SpeculativeMethod = Literal["ngram", "zap"]

    @config
    class SpeculativeConfig:
        method: SpeculativeMethod | None = None
        num_speculative_tokens: int = 1
"""


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, ["facts", *words])


@pytest.fixture
def sources(wheel: Wheel) -> Path:
    """A release of which a few tables can be read."""
    return wheel(
        "99.1",
        {
            "vllm/__init__.py": "",
            "vllm/_version.py": "__version__ = '99.1'",
            "vllm/config/speculative.py": CONFIG,
        },
    ) / "99.1"  # fmt: skip


@pytest.mark.usefixtures("user_data")
def test_the_list_has_date_age_and_origin_of_every_release() -> None:
    listed = json.loads(_run("--json").stdout)
    assert [row["version"] for row in listed["releases"]] == [str(release) for release in releases()]
    assert {row["from"] for row in listed["releases"]} == {"shipped"}
    assert listed["newest"] == {"version": str(releases()[-1]), "date": releases()[-1].built}
    assert all(row["old"] == (row["age_days"] > 6 * 30.44) for row in listed["releases"])
    ages = [row["age_days"] for row in json.loads(_run("--json", "--older-than", "0").stdout)["releases"]]
    assert all(age >= 0 for age in ages)


def test_the_list_names_newest_old_and_added(add_like_newest: Add) -> None:
    add_like_newest("99.1", metrics=lambda _table: None)
    shown = _run("--older-than", "3").stdout
    assert f"{len(releases())} releases; the newest is 99.1 of 2026-11-20." in shown
    assert "99.1        2026-11-20" in shown
    assert "added 2026-11-21 from vllm-99.1.whl; lacks metrics" in shown
    assert "Older than 3 months: " in shown


def test_add_and_remove(user_data: Path, sources: Path) -> None:
    added = _run("add", str(sources))
    assert added.exit_code == 0, added.output
    assert "vLLM 99.1 (" in added.stdout
    assert "not read: flags. " in added.stdout
    assert "all others are" in added.stdout
    assert set(get_release("99.1").table("methods")) == {"ngram", "zap"}
    assert [file.name for file in (user_data / "facts").iterdir()] == ["vllm-99.1.jsonl"]
    removed = _run("remove", "vllm==99.1")
    assert removed.exit_code == 0, removed.output
    forget_added()
    assert releases()[-1].added is None


@pytest.mark.usefixtures("user_data")
def test_add_as_json_says_what_was_read_and_what_was_not(sources: Path) -> None:
    said = json.loads(_run("add", str(sources), "--json").stdout)
    assert (said["version"], said["read_from"]) == ("99.1", str(sources))
    assert "methods" in said["topics"]
    assert "no function" in said["missing"]["flags"] or "none of" in said["missing"]["flags"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("add", "vllm==0.33.0"), 2, "are shipped with draftwise"),
        (("add", "0.8.0"), 2, "is older than 0.9.2"),
        (("add", "/no/folder"), 2, "does not hold the Python sources of vLLM"),
        (("add", "no.whl"), 2, "cannot be read as a wheel"),
        (("add", "torch==2.0"), 2, "does not hold the Python sources of vLLM"),
        (("add", "--python", "/no/python"), 2, "Cannot find out which vLLM"),
        (("add", "vllm==9.9", "--python", "x"), 2, "Give WHAT or --python"),
        (("remove", "vllm==0.33.0"), 2, "is not a release that you added"),
        (("remove", "nothing"), 2, "is not a release that you added"),
    ],
)
@pytest.mark.usefixtures("user_data")
def test_what_cannot_be_done_is_told(words: tuple[str, ...], code: int, message: str) -> None:
    result = _run(*words)
    assert result.exit_code == code, result.output
    assert message in result.stderr
