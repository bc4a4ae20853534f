"""Notes the findings that draftwise makes in a test, and fails a test that no longer brings the example it stands for.

`knowledge/data/seen.json` has examples of findings that need a server, a run or a GPU: `python -m catalogue.seen` took
each from a test. Other tests pay nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from types import FrameType
from typing import Any

import pytest

import draftwise
from draftwise.core import Finding, Ruling
from draftwise.core import finding as module
from draftwise.core.ruling import Diagnosis
from draftwise.knowledge.examples import read_seen

PACKAGE = str(Path(draftwise.__file__).parent)
TESTS = str(Path(__file__).parents[1])
ROOT = str(Path(__file__).parents[2])
_ADDRESS = re.compile(r"(?:127\.0\.0\.1:|localhost:|0\.0\.0\.0:|\[::1\]:|\bport )(\d{4,5})\b")
_PROCESS = re.compile(r"\b(pid|PID|[Pp]rocess) \d+")


@contextmanager
def note_findings() -> Iterator[list[Finding]]:
    """Yield a list to which every finding is added that the package makes."""
    noted: list[Finding] = []

    def note(make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def make_and_note(self: Finding, *args: Any, **named: Any) -> None:
            make(self, *args, **named)
            frame: FrameType | None = sys._getframe(1)
            if list_possible(self):  # a diagnosis gets its possible causes in a copy
                while frame is not None and frame.f_code.co_filename == dataclasses.__file__:
                    frame = frame.f_back
            if _is_of_package(frame):
                noted.append(self)

        return make_and_note

    with pytest.MonkeyPatch.context() as patch:
        for kind in (Finding, Ruling, Diagnosis):
            patch.setattr(kind, "__init__", note(kind.__init__))
        yield noted


def _is_of_package(frame: FrameType | None) -> bool:
    """Whether the package makes a finding, rather than a test, or a copy of one."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path == dataclasses.__file__ or (path.startswith(TESTS) and path != __file__):
            return False
        if path.startswith(PACKAGE) and path != module.__file__:
            return True
        frame = frame.f_back
    return False


def list_possible(finding: Finding) -> tuple[str, ...]:
    """Return what a finding names as possible causes of it."""
    return finding.candidates if isinstance(finding, Diagnosis) else ()


def tidy(text: str, config: pytest.Config) -> str:
    """Return a text without folders, ports and processes that differ from run to run."""
    folder = re.escape(str(config._tmp_path_factory.getbasetemp()))  # type: ignore[attr-defined]
    text = re.sub(rf"{folder}/[^/\s'\",:;)\]}}\0]+(/?)", lambda place: "" if place[1] else "folder", text)
    text = re.sub(rf"{re.escape(TESTS)}/(?:[\w-]+/)*", "", text.replace(sys.executable, "python"))
    text = text.replace(f"{ROOT}/", "").replace(f"{Path.home()}/", "~/").replace(f" on {gethostname()} ", " on host ")
    ports: dict[str, str] = {}
    for port in _ADDRESS.findall(text):
        ports.setdefault(port, str(8000 + len(ports)))
    text = re.sub(r"(?<![\d.])\d{4,5}(?![\d.]*\d)", lambda number: ports.get(number[0], number[0]), text)
    return _PROCESS.sub(r"\1 4711", text)


def mask(text: str) -> str:
    """Return the wording of a text, without its numbers."""
    return re.sub(r"[-\d.,:]*\d", "#", text)


@functools.cache
def examples_by_test() -> Mapping[str, Mapping[str, str]]:
    """Return code and text of the examples that are from each test, by the test's name."""
    found: dict[str, dict[str, str]] = {}
    for code, row in read_seen().items():
        found.setdefault(row["tested"], {})[code] = row["says"]
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test in which a finding does not come, or says something else than the example that is from it."""
    examples = examples_by_test().get(item.nodeid)
    if examples is None:
        return (yield)
    with note_findings() as noted:
        result = yield
    said: dict[str, list[str]] = {}
    for each in noted:
        for code in (each.code, *list_possible(each)):
            said.setdefault(code, []).append(mask(tidy(each.message, item.config)))
    gone = [code for code, text in examples.items() if not any(each in mask(text) for each in said.get(code, ()))]
    if gone:
        file = item.nodeid.partition("::")[0]
        pytest.fail(f"{', '.join(sorted(gone))}: its example is from this test. Run: python -m catalogue.seen {file}")
    return result
