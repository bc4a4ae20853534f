"""How long a run was expected to take stands beside how long it took."""

from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, gains, make_run

from draftwise.core import Estimate
from draftwise.reporting.predictions import describe_estimates, hold_estimates
from draftwise.reporting.tables import list_context_rows

SESSION = (
    Estimate(at_s=30.0, done=0, ahead=100, left_s=90.0),
    Estimate(at_s=80.0, done=50, ahead=50, left_s=50.0),
    Estimate(at_s=150.0, done=120, ahead=0, left_s=0.0),
)


def test_an_estimate_is_held_to_the_turns_that_came_after_it() -> None:
    """Of 100 turns 20 were taken again; each took a second, as was expected half-way."""
    first, second = hold_estimates(SESSION)
    assert (first.turns, first.took_s, first.error) == (120, 120.0, pytest.approx(-0.1))
    assert (second.turns, second.took_s, second.error) == (70, 70.0, pytest.approx(0.0))
    assert describe_estimates([first, second]) == (
        "120 turns took 2.0 min, but 1.5 min were expected for 100, 10% too little for each"
    )


def test_a_session_that_was_cut_off_is_held_to_nothing() -> None:
    assert hold_estimates(SESSION[:2]) == []
    assert len(hold_estimates((*SESSION[:2], *SESSION))) == 2


def test_the_report_tells_it() -> None:
    run = make_run({"plain": Truth(), "ngram k=3": gains(1.5)})
    assert "Time" not in dict(list_context_rows(run))
    assert dict(list_context_rows(replace(run, estimates=SESSION)))["Time"].endswith("10% too little for each")
    turns = [replace(turn, expected_s=1.2, took_s=1.0) for turn in run.turns[:8]]
    timed = replace(run, estimates=SESSION, turns=(*turns, *run.turns[8:]))
    assert dict(list_context_rows(timed))["Time"].endswith("; 20% too much for the 8 that count")
