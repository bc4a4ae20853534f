"""Runs the example of a rule: its files in an empty folder, then `check`, as a reader would."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from unittest import mock

from docs.site.markdown import fence

import draftwise
from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.knowledge.examples import RuleExample
from draftwise.knowledge.rules import VllmRule
from draftwise.plan.check import Report, judge
from draftwise.setups.read import read_words

_LANGUAGES = {".json": "json", ".yaml": "yaml", ".sh": "sh", ".py": "python", ".service": "ini", ".container": "ini"}
_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1, "U8": 1, "BOOL": 1, "I32": 4}


def _run(example: RuleExample) -> tuple[Report, ...]:
    """Return the report on each of an example's servers; one of the findings alone where nothing can be read."""
    words = shlex.split(example.command)
    version = example.vllm or None
    try:
        with _write_files(example):
            if example.verb == "inspect":
                return (_report(example, draftwise.inspect(*words, vllm=version).findings),)
            if words[0] == "vllm":
                return (judge(read_words(words, engine_version=version)),)
            return tuple(each.report for each in draftwise.check(words[0], vllm=version or ()).judgements)
    except InvalidSetup as error:
        return (_report(example, error.findings),)


def _report(example: RuleExample, findings: tuple[Finding, ...]) -> Report:
    return Report(version=example.vllm, setup=Setup(), findings=findings, resolved=None)


@contextlib.contextmanager
def _write_files(example: RuleExample) -> Iterator[None]:
    """Write an example's files into an empty folder, which is the current one for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in example.files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".safetensors":
                _write_tensors(path, text)
            else:
                path.write_text(text, encoding="utf-8")
        yield


def _write_tensors(path: Path, text: str) -> None:
    """Write a file that has the tensors of a list, name -> [type, *shape], in its header, and no data on disk."""
    header, end = {}, 0
    for name, (kind, *shape) in json.loads(text).items():
        start, end = end, end + math.prod(shape) * _BYTES[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    written = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(written)) + written)
        file.truncate(8 + len(written) + end)


def find_findings(example: RuleExample) -> tuple[Finding, ...]:
    """Return every finding on an example's servers, or on why it cannot be read."""
    return tuple(finding for report in _run(example) for finding in report.findings)


def compare(code: str, example: RuleExample) -> tuple[list[str], list[str]]:
    """Return the lines that `check` prints of an example because of a rule, and those that it would print without it.

    Where the outcome differs, it and the errors are enough.
    """
    holds = VllmRule.holds
    with_it = _run(example)
    with mock.patch.object(VllmRule, "holds", lambda rule, version: rule.code != code and holds(rule, version)):
        without = _run(example)
    differs = [each.outcome for each in with_it] != [each.outcome for each in without]
    first, second = (
        [line for report in reports for line in (_tell_outcome(report) if differs else _tell_all(report))]
        for reports in (with_it, without)
    )
    return [line for line in first if line not in second], [line for line in second if line not in first]


def _tell_outcome(report: Report) -> list[str]:
    stops = (each for each in report.findings if each.severity is Severity.ERROR)
    return [f"{report.release}: {report.outcome}", *map(str, stops)]


def _tell_all(report: Report) -> list[str]:
    found = report.resolved
    values = {} if found is None else {field.name: getattr(found, field.name) for field in fields(found)}
    values |= values.pop("fields", {})
    return [*map(str, report.findings), *(f"{name}: {value}" for name, value in values.items())]


def is_met(code: str, example: RuleExample) -> bool:
    """Say whether an example meets a rule: it is a finding, or it decides what else is said."""
    return any(finding.code == code for finding in find_findings(example)) or any(compare(code, example))


def show_example(code: str, example: RuleExample) -> str:
    """Return the files, the command and what it says of the rule, as Markdown."""
    said = next((str(finding) for finding in find_findings(example) if finding.code == code), "")
    if not said:
        if not any(differing := compare(code, example)):
            raise ValueError(f"the example of {code} does not meet it")
        with_it, without = ("\n".join(lines) or "nothing of this" for lines in differing)
        said = f"With this rule:\n{with_it}\n\nWithout it:\n{without}"
    return "\n\n".join([*_files(example), fence(example.line, "sh"), fence(said, "text")])


def _files(example: RuleExample) -> Iterator[str]:
    for name, text in example.files.items():
        path = Path(name)
        language = _LANGUAGES.get(path.suffix, "dockerfile" if path.name == "Dockerfile" else "text")
        what = " has these tensors (type, then shape)" if path.suffix == ".safetensors" else ""
        yield f"`{name}`{what}:\n\n{fence(text.rstrip(), 'json' if what else language)}"
