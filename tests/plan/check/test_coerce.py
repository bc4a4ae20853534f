"""The reading of JSON values against the library whose behaviour it predicts."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.plan.check.cli.coercion import Mismatch, coerce

FIELDS: dict[str, tuple[Any, tuple[str, ...] | None]] = {
    "int": (int, None),
    "int | None": (int | None, None),
    "Optional[int]": (int | None, None),
    "float": (float, None),
    "bool": (bool, None),
    "str | None": (str | None, None),
    "list[float] | None": (list[float] | None, None),
    "list[tuple[int, int, int]] | None": (list[tuple[int, int, int]] | None, None),
    "Method | None": (Literal["ngram", "eagle"] | None, ("ngram", "eagle")),
    'Literal["ngram", "eagle"] | None': (Literal["ngram", "eagle"] | None, None),
    "Method | str | None": (Literal["ngram", "eagle"] | str | None, ("ngram", "eagle")),
}
NUMBERS_AS_TEXT = st.from_regex(r"\A ?[+-]?[0-9]{1,4}(\.0{0,2}|\.[0-9])? ?\Z")
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5000), st.floats(-4, 4), st.sampled_from([2.0, 1e3, 0.0, 1.0]),
    st.sampled_from(["ngram", "Eagle", "true", "Off", "yes", "", "4", "4.0", "1_000", "abc", "1e3", "0.5"]),
    NUMBERS_AS_TEXT, st.lists(st.integers(0, 3) | st.text(max_size=2), max_size=4),
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), max_size=2), st.just({"a": 1}),
)  # fmt: skip


@pytest.mark.parametrize("declared", FIELDS)
@given(value=VALUES)
def test_reads_as_pydantic_does(declared: str, value: Any) -> None:
    annotation, choices = FIELDS[declared]
    try:
        expected = pydantic.TypeAdapter(annotation).validate_python(value)
    except pydantic.ValidationError:
        with pytest.raises(Mismatch):
            coerce(value, declared, choices)
    else:
        read = coerce(value, declared, choices)
        assert (read, type(read)) == (expected, type(expected))


def test_a_type_that_is_not_checked_takes_everything() -> None:
    assert coerce("4", "SkipValidation[int]") == "4"
