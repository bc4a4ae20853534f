"""Numbers with a unit are read as vLLM's `human_readable_int` reads them."""

import pytest

from draftwise.knowledge.flag_types import read_human_int


@pytest.mark.parametrize(
    ("text", "number"),
    [("8192", 8192), (" 8k ", 8000), ("8K", 8192), ("1.5k", 1500), ("32.3k", 32299), ("16G", 16 * 2**30), ("-1", -1)],
)
def test_units_are_decimal_in_lower_and_binary_in_upper_case(text: str, number: int) -> None:
    assert read_human_int(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5K", "1.5", "8kk", "9" * 400 + "k"])
def test_everything_else_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|9k$"):
        read_human_int(text)
