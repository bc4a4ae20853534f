"""Conditions of vLLM over what is known: three values, of which unknown decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from draftwise.plan.check.cli.condition_values import UNKNOWN, decide

NAMES = {"a": 2, "b": None, "s": "Foo", "items": [1, -1], "c": {"d": 3}, "platform.is_cuda()": True}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a > 1", True), ("b is None", True), ("x is None", UNKNOWN), ("_ and a > 5", False), ("_ and a > 1", UNKNOWN),
        ("a > 1 or _", True), ("not _", UNKNOWN), ("c.d * a", 6), ("c.e", UNKNOWN), ("a if b is None else _", 2),
        ("_ if a > 1 else 0", UNKNOWN), ("s.lower() == 'foo'", True), ("s not in ['Foo']", False),
        ("any((item < 0 for item in items))", True), ("any((item < x for item in items))", UNKNOWN),
        ("len(items) > 1", True), ("0 <= a < 2", False), ("isinstance(s, str)", True), ("platform.is_cuda()", True),
        ("platform.is_cpu()", UNKNOWN), ("a % 0", UNKNOWN), ("b + 1", UNKNOWN), ("s > 1", UNKNOWN), ("-a", -2),
    ],
)  # fmt: skip
def test_decide(expression: str, value: Any) -> None:
    assert decide(expression, NAMES) == value
