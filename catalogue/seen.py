"""Takes examples of findings from the tests: `python -m catalogue.seen [PATH...]` writes data/seen.json.

It runs tests (those that have an example, or the files and folders you name), and notes for each finding that has no
example in data/examples.json the best one: a command line that printed it, else a call of a verb that returned it,
else the finding alone; of a cause that nothing decides, a diagnosis that names it as possible. An example of a test
that ran and no longer brings it is dropped.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result
from tests.support import raised
from tests.support.raised import note_findings, tidy

from draftwise.cli._group import VerbGroup
from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.examples import read_examples, read_seen
from draftwise.knowledge.findings import all_findings
from draftwise.verbs.verb import Verb
from draftwise.watching.diagnose.diagnose import RULES

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/draftwise/knowledge/data/seen.json"
MOST_SAID = 800
MOST_TYPED = 300
"""Characters of an example; a longer command line is not shown."""
MOST_LINES = 8
"""Of all files that a command line names; longer ones are not shown."""
_PATH = re.compile(r"\w*Path\(('[^']*')\)")
_SPACE = re.compile(r"[\s│┃|✗!·\"\\]+")
_DEPTH = 12
_POSSIBLE, _POSSIBLE_RANK = " Possible causes: ", 4
_DECIDED = frozenset(rule.code for rule in RULES) | {
    fact.code for fact in all_findings().values() if (row := fact.diagnosis) and (row.confirmed_by or row.logged)
}
"""Diagnoses that are made themselves, given their readings."""


class Recorder:
    """A plugin of pytest that keeps the best example of each finding."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted
        self.found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.ran: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note what a test brings; one that draws its inputs brings something else each time."""
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            return (yield)
        with note_findings() as noted, pytest.MonkeyPatch.context() as patch:
            session = _Session(noted)
            session.listen(patch)
            result = yield
        self.ran.add(item.nodeid)
        text = inspect.getsource(item.obj) if isinstance(item, pytest.Function) else ""
        for rank, finding, command, files in (*session.shown, *((3, each, "", {}) for each in noted)):
            named = (each for each in raised.list_possible(finding) if each not in _DECIDED)
            for code in self.wanted.intersection({finding.code, *named}):
                possible = f"{_POSSIBLE}{', '.join(raised.list_possible(finding))}." * (code != finding.code)
                if row := _draw(finding, possible, command, files, item.config):
                    order = (
                        *(_POSSIBLE_RANK if possible else rank, not finding.fix, "json" in row.get("command", "")),
                        *(f'"{code}"' not in text, "[" in item.nodeid, len(repr(row)), item.nodeid),
                    )
                    if code not in self.found or order < self.found[code][0]:
                        self.found[code] = order, {**row, "tested": item.nodeid}
        return result


class _Session:
    """What reached a user in one test: rank, finding, command or call, and the files that the command names."""

    def __init__(self, noted: Sequence[Finding]) -> None:
        self.noted = noted
        self.shown: list[tuple[int, Finding, str, dict[str, str]]] = []
        self._typed: list[tuple[str, dict[str, str]]] = []
        self._is_inside = False

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        invoke, run = CliRunner.invoke, Verb.run

        def invoke_and_keep(
            runner: CliRunner, cli: click.Command, args: Any = None, *more: Any, **named: Any
        ) -> Result:
            words = shlex.split(args) if isinstance(args, str) else [str(each) for each in args or ()]
            words = ["draftwise", *([] if isinstance(cli, VerbGroup) else [cli.name or ""]), *words]
            self._typed.append((shlex.join(words), _read_files(words)))
            before, told = len(self.noted), len(self.shown)
            try:
                result = invoke(runner, cli, args, *more, **named)
            finally:
                command, files = self._typed.pop()
            output = _SPACE.sub("", result.output)
            for finding in (*(each[1] for each in self.shown[told:]), *self.noted[before:]):
                if _SPACE.sub("", finding.message) in output:
                    whole = finding if _SPACE.sub("", finding.fix) in output else replace(finding, fix="")
                    self.shown.append((0, whole, command, files))
            return result

        def run_and_keep(verb: Verb[Any, Any, Any], request: Any, progress: Any = None) -> Any:
            if self._is_inside:
                return run(verb, request, progress)
            self._is_inside = True
            reached: Sequence[Finding] = ()
            try:
                result = run(verb, request, progress)
                reached = list(_walk(result, set(), _DEPTH))
            except InvalidSetup as error:
                reached = error.findings
                raise
            finally:
                self._is_inside = False
                command, files = self._typed[-1] if self._typed else (_describe(verb.__name__, request), {})
                made = {each.code for each in self.noted}
                rank = 1 if self._typed else 2 if command else 3
                self.shown += [(rank, each, command, files) for each in reached if each.code in made]
            return result

        patch.setattr(CliRunner, "invoke", invoke_and_keep)
        patch.setattr(Verb, "run", run_and_keep)


def _walk(value: Any, seen: set[int], depth: int) -> Iterator[Finding]:
    """Yield the findings anywhere in a result."""
    if depth == 0 or id(value) in seen or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, Finding):
        yield value
    parts: Any = ()
    if is_dataclass(value):
        parts = (getattr(value, each.name, None) for each in fields(value))
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    for part in parts:
        yield from _walk(part, seen, depth - 1)


def _describe(name: str, request: Any) -> str:
    """Return the call of a verb; empty where a value is not one that you would type."""
    given = []
    for field in fields(request) if is_dataclass(request) else ():
        value = getattr(request, field.name)
        if value == field.default or (not value and not isinstance(value, bool)):
            continue
        text = _PATH.sub(r"\1", repr(value))
        if re.search(r"<|[A-Z]\w+\(", text):
            return ""
        given.append(f"{field.name}={text}")
    return f"draftwise.{name}({', '.join(given)})"


def _read_files(words: Sequence[str]) -> dict[str, str]:
    """Return the text of the files that a command line names, before it changes them."""
    found = {}
    for word in words:
        name = word.partition("=")[2] if word.startswith("--") else word
        try:
            if len(name) < 1000 and os.path.isfile(name) and os.path.getsize(name) < 2000:
                found[name] = Path(name).read_text("utf-8").replace("\0", " ")
        except (OSError, ValueError):
            continue
    return found


def _draw(
    finding: Finding, possible: str, command: str, files: Mapping[str, str], config: pytest.Config
) -> dict[str, Any] | None:
    """Return a row without what differs from run to run; None for one that shows places of this machine."""
    if sum(text.count("\n") + len(text) // 100 + 1 for text in files.values()) > MOST_LINES:
        files = {}
    if len(tidy(command, config)) > MOST_TYPED:
        command, files = "", {}
    said = f"{finding.severity}: {finding}{possible}"
    texts = [command, said, *(part for each in files.items() for part in each)]
    command, said, *pairs = tidy("\0".join(texts), config).split("\0")
    row = {"command": command, "says": said, "files": dict(zip(pairs[::2], pairs[1::2], strict=True))}
    places = (
        tempfile.gettempdir(),
        str(ROOT),
        sys.prefix,
        sys.base_prefix,
        str(Path.home()),
        " at 0x",
        "pytest",
        "file:///",
    )
    if len(said) > MOST_SAID or any(place in repr(row) for place in places):
        return None
    return {key: value for key, value in row.items() if value}


def main(paths: Sequence[str]) -> None:
    """Run tests, and write the examples that they bring, and bring again when everything has run once."""
    wanted = frozenset(set(all_findings()) - set(read_examples()))
    rows = {code: row for code, row in read_seen().items() if code in wanted}
    recorder, verdicts = Recorder(wanted), _Verdicts()
    _run(paths or sorted({row["tested"] for row in rows.values()}), recorder, {})
    for code, (order, row) in recorder.found.items():
        old = rows.get(code)
        if old is None or old["tested"] in recorder.ran or order[0] < _rank(old):
            rows[code] = row
    rows = {code: row for code, row in rows.items() if row["tested"] not in recorder.ran or code in recorder.found}
    again: dict[str, dict[str, str]] = {}
    for code, row in rows.items():
        if row["tested"] in recorder.ran:
            again.setdefault(row["tested"], {})[code] = row["says"]
    if again:
        _run(sorted(again), verdicts, again)
    lines = [
        f" {json.dumps(code)}: {json.dumps(row, ensure_ascii=False)}"
        for code, row in sorted(rows.items())
        if row["tested"] not in verdicts.failed
    ]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print("\n".join(sorted(verdicts.failed)), f"{len(lines)} findings have an example of a test", sep="\n")


class _Verdicts:
    """A plugin of pytest that keeps the names of tests that fail."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def _run(paths: Sequence[str], plugin: object, examples: Mapping[str, Mapping[str, str]]) -> None:
    with mock.patch.object(raised, "examples_by_test", return_value=examples):
        pytest.main(["-q", "-p", "no:cacheprovider", *paths], plugins=[plugin])


def _rank(row: Mapping[str, Any]) -> int:
    command = row.get("command", "")
    if _POSSIBLE in row["says"]:
        return _POSSIBLE_RANK
    return 0 if command.startswith("draftwise ") else 2 if command else 3


if __name__ == "__main__":
    main(sys.argv[1:])
