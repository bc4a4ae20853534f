"""What a baseline says, and what is not known without it."""

from dataclasses import replace

import pytest
from tests.support.watched import make_baseline

from draftwise.core import Counters, ServerLoad, Sums, Window
from draftwise.watching.yardstick import Yardstick

YARDSTICK = Yardstick(baseline=make_baseline())
NOTHING = Yardstick()
WINDOW = Window(
    pool="spec", instance="a", start_s=0.0, duration_s=10.0, counters=Counters(generation_tokens=1000),
    load=ServerLoad(running=8.0), sums=Sums(decode_s=54.0, finished=0, finished_tokens=1000),
)  # fmt: skip


def test_the_run_says_what_is_expected_and_where_it_stops_paying() -> None:
    assert YARDSTICK.break_even == 1.35
    assert YARDSTICK.crossover == 40
    assert YARDSTICK.tokens_per_step == pytest.approx(1.871)
    assert (NOTHING.break_even, NOTHING.crossover, NOTHING.tokens_per_step) == (None, None, None)


@pytest.mark.parametrize(
    ("batch", "plain", "seconds"),
    [(1, False, 0.02), (0.4, False, 0.02), (8, False, 0.027), (4.5, False, 0.0235), (36, True, 0.035), (64, True, 0.05),
     (65, False, None), (None, False, None)],
)  # fmt: skip
def test_a_step_is_as_long_as_in_the_run_and_unknown_beyond_it(
    batch: float | None, plain: bool, seconds: float | None
) -> None:
    found = YARDSTICK.step_s(batch, plain=plain)
    assert found == (None if seconds is None else pytest.approx(seconds))
    assert NOTHING.step_s(batch, plain=plain) is None


def test_steps_are_held_against_the_load_of_one_engine() -> None:
    assert YARDSTICK.step_ratio(WINDOW) == pytest.approx(54 / 27)
    pair = replace(WINDOW, load=ServerLoad(running=16.0), engines=2)
    assert YARDSTICK.step_ratio(pair) == pytest.approx(54 / 27)
    assert YARDSTICK.step_ratio(replace(WINDOW, load=ServerLoad())) is None


def test_what_cannot_be_answered_is_said_with_what_would_answer_it() -> None:
    def ask(yardstick: Yardstick, *, plain: bool, probe: bool = False) -> list[str]:
        return list(yardstick.list_unanswered(has_plain=plain, has_probe=probe))

    assert [sentence.split("Pass ")[1].split(" ")[0] for sentence in ask(NOTHING, plain=False)] == [
        "--baseline",
        "--plain",
    ]
    assert len(ask(NOTHING, plain=True)) == 1
    no_window, no_probe = ask(YARDSTICK, plain=False)
    assert ("adapters" in no_window, "no probe" in no_probe) == (True, True)
    assert ask(Yardstick(baseline=make_baseline(seen=WINDOW)), plain=False) == [no_probe]
    assert len(ask(Yardstick(baseline=make_baseline(curve_ms={})), plain=False)) == 3
    assert any("break-even" in each for each in ask(Yardstick(baseline=make_baseline(rollback=())), plain=True))
    missing = ("When to roll back: the run measured vLLM 0.25.0.",)
    (why,) = ask(Yardstick(baseline=make_baseline(rollback=(), missing=missing, seen=WINDOW)), plain=True, probe=True)[
        :1
    ]
    assert "the baseline has no break-even (the run measured vLLM 0.25.0)." in why
