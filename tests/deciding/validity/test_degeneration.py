"""Laws and hand cases of the degeneration measures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.deciding.validity.output_checks import Loop, distinct_ngram_ratio, find_loop

tokens = st.lists(st.integers(0, 50), max_size=120)


@pytest.mark.parametrize("period", [1, 2, 7, 8, 20, 64])
def test_a_repeated_ngram_is_a_loop_of_its_period(period: int) -> None:
    head = [1000, 1001, 1002]
    repeats = max(3, -(-24 // period))
    sequence = head + list(range(period)) * repeats
    assert find_loop(sequence) == Loop(start=3, period=period, length=period * repeats)


def test_a_cut_off_last_repeat_still_counts() -> None:
    sequence = [99, *list(range(10)) * 3, 0, 1, 2]
    assert find_loop(sequence) == Loop(start=1, period=10, length=33)


@pytest.mark.parametrize(
    "sequence",
    [
        [],
        [5],
        [7] * 23,
        list(range(12)) * 2,
        list(range(65)) * 3,
        [*list(range(10)) * 4, 77],
        list(range(200)),
    ],
    ids=["empty", "one", "short", "twice", "long-period", "left-the-loop", "no-repeat"],
)
def test_what_is_no_loop(sequence: list[int]) -> None:
    assert find_loop(sequence) is None


@given(tokens)
def test_a_found_loop_is_really_periodic(sequence: list[int]) -> None:
    loop = find_loop(sequence, min_tokens=3)
    if loop is None:
        return
    tail = sequence[loop.start :]
    assert len(tail) == loop.length >= 3 * loop.period
    assert all(a == b for a, b in zip(tail, tail[loop.period :], strict=False))
    before = loop.start - 1
    assert before < 0 or sequence[before] != sequence[before + loop.period]


@given(tokens, st.lists(st.integers(0, 50), min_size=1, max_size=64), st.integers(3, 5))
def test_a_planted_loop_is_always_found(head: list[int], gram: list[int], repeats: int) -> None:
    repeats = max(repeats, -(-24 // len(gram)))
    loop = find_loop(head + gram * repeats)
    assert loop is not None
    assert loop.period <= len(gram)


@given(tokens, st.integers(1, 6))
def test_distinct_ratio_is_a_share_and_one_without_repeats(sequence: list[int], n: int) -> None:
    ratio = distinct_ngram_ratio(sequence, n)
    assert 0 < ratio <= 1
    assert distinct_ngram_ratio(list(range(len(sequence))), n) == 1.0


def test_distinct_ratio_counts_by_hand() -> None:
    assert distinct_ngram_ratio([1, 2, 1, 2, 1], n=2) == 0.5
    assert distinct_ngram_ratio([3] * 11) == 1 / 8
    with pytest.raises(ValueError, match="at least 1"):
        distinct_ngram_ratio([1], n=0)
