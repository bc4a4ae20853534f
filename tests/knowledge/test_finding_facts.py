"""The registries of codes and the source agree: nothing is printed that `explain` does not know, and no row is idle."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.emitted_codes import find_faults

import draftwise
from draftwise.core import Severity
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import all_findings, get_finding, read_finding_rooms
from draftwise.knowledge.rules import all_rules

PACKAGE = Path(draftwise.__file__).parent
SOURCES = {path.relative_to(PACKAGE.parent).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
FACTS = tuple(all_findings().values())
ROWS = {each.code: frozenset(map(str, each.severities)) for each in FACTS}
ROLES = ("target", "drafter")
COMPOSED = {
    "aux-targets-{}": ("dflash", "extract-hidden-states"),
    "{}-class-unknown": ROLES,
    "{}-has-no-experts": ROLES,
    "{}-heads-not-divisible": ROLES,
    "{}-needs-bfloat16": ROLES,
    "{}-needs-remote-code": ROLES,
    "{}-quantization-deprecated": ROLES,
    "{}-quantization-differs": ROLES,
    "{}-quantization-unknown": ROLES,
    "{}-too-long": ROLES,
    "{}-type-unknown": ROLES,
    "{}-untyped": ROLES,
    "{}-without-pipeline": ROLES,
}
"""Codes that are put together when they are needed, with what stands for the braces."""


def test_source_and_registries_agree() -> None:
    """Diagnoses are named by rules and by other rows; `tests/watching/diagnose` finds each of them."""
    named_by_rules = {f"{fact.code}: has a row, and nothing emits it" for fact in FACTS if fact.diagnosis}
    faults = find_faults(SOURCES, ROWS, frozenset({*all_rules(), *all_advice()}), COMPOSED)
    assert [fault for fault in faults if fault not in named_by_rules] == []


def test_a_code_is_in_one_registry() -> None:
    registries = (all_findings(), all_rules(), all_advice())
    codes = [code for registry in registries for code in registry]
    assert [code for code in set(codes) if codes.count(code) > 1] == []


def test_every_composed_code_has_a_row() -> None:
    known = {*all_findings(), *all_rules(), *all_advice()}
    assert {template.format(part) for template, parts in COMPOSED.items() for part in parts} <= known


def test_every_row_is_complete() -> None:
    for fact in FACTS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fact.code)
        assert not fact.title.endswith("."), fact.code
        assert fact.explains.endswith("."), fact.code
        assert fact.fix.endswith("."), fact.code
        assert fact.severities == tuple(each for each in Severity if each in fact.severities), fact.code
        assert fact.room in read_finding_rooms(), fact.code


def test_thresholds_exist() -> None:
    known = {each.name for each in fields(Thresholds)}
    assert {fact.threshold for fact in FACTS if fact.threshold} <= known


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        get_finding("no-such-finding")


# What the comparison above rests on, held against small sources in which a mistake was planted.

CORE = """
class InvalidSetup(Exception):
    @classmethod
    def because(cls, code, message, *, where=""):
        return cls(Finding(code=code, severity=Severity.ERROR, message=message))
"""
SHORT = """
from core import Finding, Severity

def error(code, message):
    return Finding(code=code, severity=Severity.ERROR, message=message)

def warning(code, message):
    return Finding(code=code, severity=Severity.WARNING, message=message)
"""


def judge(text: str, **rows: str) -> list[str]:
    named = {code.replace("_", "-"): frozenset(severities.split()) for code, severities in rows.items()}
    return find_faults({"core.py": CORE, "short.py": SHORT, "made.py": text}, named)


@pytest.mark.parametrize(
    "text",
    [
        'Finding(code="too-slow", severity=Severity.WARNING, message="")',
        'Ruling(message="", severity=Severity.WARNING, code="too-slow")',
        'from short import warning\nwarning("too-slow", "it is")',
        'from short import warning\nwarning(message="it is", code="too-slow")',
        'def add(n):\n    code = "too-slow" if n else "too-slow"\n    report(code, "", Severity.WARNING)\n'
        "def report(code, message, severity):\n    return Finding(code=code, severity=severity, message=message)",
        'from short import warning\nfor code, text in (("too-slow", "a"), ("too-slow", "b")):\n    warning(code, text)',
        'from short import warning\nCODES = {1: "too-slow"}\ndef say(n):\n    return warning(CODES[n], "")',
    ],
)
def test_every_way_to_write_a_finding_is_seen(text: str) -> None:
    assert judge(text, too_slow="warning") == []
    assert {re.sub(r"\d+", "N", fault) for fault in judge(text)} == {"made.py:N: too-slow is in no registry"}


def test_an_unknown_code_is_noticed() -> None:
    text = 'def refuse(name):\n    raise InvalidSetup.because("no-such-code", name)'
    assert judge(text) == ["made.py:2: no-such-code is in no registry"]


def test_the_codes_of_a_format_are_emitted_as_errors() -> None:
    text = (
        'Format(foreign="no-such-code", damaged="broken")\ndef read(form):\n    InvalidSetup.because(form.foreign, "")'
    )
    assert judge(text, broken="error") == ["made.py:1: no-such-code is in no registry"]
    assert judge('Format(damaged="broken")', broken="warning") == [
        "broken: is emitted as error, its row says otherwise"
    ]


def test_an_unused_row_is_noticed() -> None:
    text = 'from short import error\nerror("too-slow", "too-fast")'
    assert judge(text, too_slow="error", too_fast="error") == ["too-fast: has a row, and nothing emits it"]
    assert find_faults({"made.py": 'get_rule("in-use")'}, {}, frozenset({"in-use", "rotten"})) == [
        "rotten: has a row, and nothing names it"
    ]


def test_severities_that_a_row_lacks_are_noticed() -> None:
    text = 'from short import error, warning\nkind = error if late else warning\nkind("too-slow", "it is")'
    assert judge(text, too_slow="error warning") == []
    assert judge(text, too_slow="error") == ["too-slow: is emitted as error, warning, its row says otherwise"]


def test_a_code_that_only_running_shows_is_noticed() -> None:
    (fault,) = judge('from short import error\ndef say(codes):\n    return error(codes[0], "")')
    assert fault == "made.py:3: codes[0] is known at run time only; write the codes as literals"
    (fault,) = judge('from short import error\ndef say(role):\n    return error(f"{role}-slow", "")')
    assert "known at run time only" in fault


def test_composed_codes_are_spelled_out() -> None:
    sources = {"short.py": SHORT, "made.py": 'from short import error\ndef say(role):\n    error(f"{role}-slow", "")'}
    rows = {"target-slow": frozenset({"error"}), "drafter-slow": frozenset({"error"})}
    assert find_faults(sources, rows, composed={"{}-slow": ROLES}) == []
    assert find_faults(sources, rows, composed={"{}-slow": ("target",)}) == [
        "drafter-slow: has a row, and nothing emits it"
    ]


def test_other_calls_of_the_same_name_are_no_emissions() -> None:
    faults = "class Faults:\n  def add(self, code, message, where):\n    Finding(code=code, severity=Severity.ERROR)\n"
    assert judge(f'{faults}names.add("some-name")\nfaults.add("too-slow", "", "")', too_slow="error") == []
    namesakes = """
class Rule:
    def ruling(self, message):
        return Ruling(code=self.code, severity=self.severity, message=message)

class Context:
    def ruling(self, code):
        return get_rule(code).ruling(f"{self.ruling(code)} is said.")

def check(context, rule):
    rule.ruling("is read.")
    context.ruling("no-such-rule")
"""
    assert judge(namesakes) == ["made.py:12: no-such-rule is in no registry"]
