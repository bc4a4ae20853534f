"""Examples from tests are short, show no place of this machine, and their tests are there and watched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docs.site.examples import show_example
from tests.support import raised

import draftwise
from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.examples import RuleExample, find_example, read_examples, read_seen
from draftwise.knowledge.findings import all_findings

ROOT = Path(__file__).parents[2]
PLACES = re.compile(r"/tmp/|/root|/home/|/work/|pytest|0x[0-9a-f]{6}|127\.0\.0\.1:[3-6]\d{4}")


def test_they_are_of_findings_that_no_command_alone_meets() -> None:
    assert read_seen().keys() <= all_findings().keys() - read_examples().keys()


@pytest.mark.parametrize("code", sorted(read_seen()))
def test_an_example_is_short_and_shows_no_place_of_a_machine(code: str) -> None:
    example = find_example(code)
    assert example is not None
    said = show_example(code, example).split("```")[-2].splitlines()[1:]
    assert 1 <= len(said) <= 12
    assert not PLACES.search(json.dumps([example.command, dict(example.files), example.says]))


def test_each_test_is_there(request: pytest.FixtureRequest) -> None:
    """Its file has the function; where that was collected, it was with the parameters that the example is from."""
    collected = {item.nodeid for item in request.session.items}
    functions = {name.partition("[")[0] for name in collected}
    for test in raised.examples_by_test():
        file, *_, function = test.partition("[")[0].split("::")
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), test
        assert test.partition("[")[0] not in functions or test in collected, test


def test_only_findings_of_the_package_count() -> None:
    with raised.note_findings() as noted:
        replace(Finding.info("unknown-key", "made here"), where="here")
        with pytest.raises(InvalidSetup):
            draftwise.explain("no-such-name-at-all")
    assert [each.code for each in noted] == ["unknown-name"]


def test_a_test_without_its_finding_fails(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    name = "unknown-name"
    monkeypatch.setattr(
        raised,
        "examples_by_test",
        lambda: {"a.py::test_b": {name: "error: The name 'no-such-name-at-all' is unknown."}},
    )
    item: Any = SimpleNamespace(nodeid="a.py::test_b", config=request.config)
    fails, passes = raised.pytest_runtest_call(item), raised.pytest_runtest_call(item)
    next(fails)
    with pytest.raises(pytest.fail.Exception, match=r"unknown-name: .* python -m catalogue\.seen a\.py"):
        next(fails)
    next(passes)
    with pytest.raises(InvalidSetup):
        draftwise.explain("no-such-name-at-all")
    with pytest.raises(StopIteration):
        next(passes)


def test_a_page_shows_situation_command_and_answer() -> None:
    example = RuleExample(
        command="draftwise watch http://127.0.0.1:8000",
        says="warning: It fell. Look.",
        tested="tests/cli/test_watch.py::TestIt::test_a_server_that_fell_is_named[1]",
    )
    assert show_example("any", example).split("\n\n") == [
        "```sh\ndraftwise watch http://127.0.0.1:8000\n```",
        "draftwise says:",
        "```text\nwarning: It fell. Look.\n```",
        'Checked by the test "a server that fell is named" of `tests/cli/test_watch.py`.',
    ]
