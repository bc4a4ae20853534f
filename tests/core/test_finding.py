"""A finding as one line of text: where, what and what to do, nothing twice."""

import ast
import errno
import os
from pathlib import Path

import pytest

import draftwise
from draftwise.core import Finding, Severity, cause_of


@pytest.mark.parametrize(
    ("where", "message", "text"),
    [
        ("", "No GPU is named.", "No GPU is named."),
        ("model", "There is none.", "model: There is none."),
        ("max_model_len", "max_model_len is 0.", "max_model_len is 0."),
        ("--max-model-len", "max_model_len is 0.", "max_model_len is 0."),
        ("KV cache", "3 layers keep a state.", "KV cache: 3 layers keep a state."),
    ],
)
def test_the_place_stands_first_unless_the_message_names_it(where, message, text):
    finding = Finding(code="x", severity=Severity.ERROR, message=message, where=where)
    assert str(finding) == text


def test_the_fix_stands_last():
    finding = Finding(code="x", severity=Severity.ERROR, message="k is 0.", where="k", fix="Give 1.")
    assert str(finding) == "k is 0. Give 1."


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.ECONNREFUSED])
def test_a_cause_has_neither_number_nor_path(number):
    assert cause_of(OSError(number, os.strerror(number), "/a/path")) == os.strerror(number)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("Not a gzipped file"), "Not a gzipped file"),
        (TimeoutError(), "TimeoutError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not UTF-8 text"),
        (KeyError("model_type"), "it lacks 'model_type'"),
        (TypeError("'int' object is not iterable"), "a value has another type"),
        (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
        (ValueError("Exceeds the limit (4300 digits) for integer"), "it has a number of too many digits"),
        (ValueError("line 3 is no number"), "line 3 is no number"),
    ],
)
def test_a_cause_is_never_empty(error, text):
    assert cause_of(error) == text


def test_no_message_prints_an_error_of_the_system_whole():
    """`[Errno 2] No such file or directory: 'x'` behind a sentence that names x."""
    root, found = Path(draftwise.__file__).parent, []
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for handler in ast.walk(ast.parse(text)) if "OSError" in text else ():
            if isinstance(handler, ast.ExceptHandler) and handler.type and "OSError" in ast.unparse(handler.type):
                shown = (each.value for each in ast.walk(handler) if isinstance(each, ast.FormattedValue))
                whole = [each.lineno for each in shown if isinstance(each, ast.Name) and each.id == handler.name]
                found += [f"{file.relative_to(root)}:{line}" for line in whole]
    assert not found
