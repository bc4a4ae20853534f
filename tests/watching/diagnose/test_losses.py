"""What a service loses is the product of three parts, to the last digit; and a cause is confirmed by config or log."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.made_windows import ASKED_SPEC, EXPECTED, HEALTHY, expect, make_baseline, make_window
from tests.support.production import SPEC

from draftwise.core import ServerLoad
from draftwise.watching.diagnose import SideInfo, diagnose
from draftwise.watching.diagnose.pool_case import PoolCase, find_losses, find_request_loss, is_less, relative_error


@given(
    st.floats(0.005, 0.2),
    st.floats(1.0, 60.0),
    st.floats(0.05, 0.99),
    st.floats(0.05, 0.99),
    st.sampled_from([True, False]),
)
def test_the_parts_add_up_to_the_time_per_token(
    step_s: float, running: float, first: float, coverage: float, has_earlier: bool
) -> None:
    server = replace(SPEC, step_s=step_s, running=running, positions=(first, first**2, first**3), coverage=coverage)
    expected = expect(earlier=HEALTHY if has_earlier else None, baseline=make_baseline())
    case = PoolCase(windows=(make_window(server),), expected=expected)
    losses = find_losses(case)
    assert case.good is not None
    then_step = expected.yardstick.step_s(case.good.batch)
    then_tokens = case.good.tokens_per_decode_step or case.good.tokens_per_step
    now = case.window.seconds_per_token
    assert now is not None
    assert then_step is not None
    assert then_tokens is not None
    assert losses.machine is not None
    assert losses.load is not None
    assert losses.acceptance is not None
    assert losses.machine + losses.load + losses.acceptance == pytest.approx(log(now / (then_step / then_tokens)))


def test_what_is_not_known_is_none() -> None:
    losses = find_losses(PoolCase(windows=(HEALTHY,)))
    assert (losses.machine, losses.load, losses.acceptance) == (None, None, None)
    no_gauges = replace(HEALTHY, load=ServerLoad())
    assert find_losses(PoolCase(windows=(no_gauges,), expected=EXPECTED)).machine is None
    assert find_request_loss(HEALTHY, None) is None


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.0, 0.5), st.floats(0.0, 0.3))
def test_less_is_less_by_a_share_and_beyond_the_noise(now: float, then: float, by: float, error: float) -> None:
    assume(abs(now - then) > 1e-9)
    if is_less(now, then, by=by, error=error):
        assert now < then
        assert is_less(now / 2, then, by=by, error=error)
        assert is_less(now, then, by=by / 2, error=error / 2)


def test_more_requests_leave_less_noise_and_none_decide_nothing() -> None:
    long, short = make_window(SPEC, seconds=3600), make_window(SPEC, seconds=60)
    assert relative_error(long) < relative_error(short)
    idle = replace(make_window(replace(SPEC, finished=0.0)), load=ServerLoad(running=0.0))
    assert not is_less(0.5, 1.0, by=0.0, error=relative_error(idle))


SLOWER = make_window(replace(SPEC, step_s=0.05))
ZERO = make_window(replace(SPEC, positions=(0.0,) * 3))


def test_a_log_confirms_what_counters_leave_open() -> None:
    line = "WARNING Async scheduling is disabled because the V1 model runner does not support it with ngram."
    (first, *rest) = diagnose({"spec": [SLOWER]}, EXPECTED, asked=SideInfo(log=f"INFO start\n{line}\n"))
    assert (first.code, first.evidence[0]) == ("async-off", line)
    assert [(each.code, each.follows_from) for each in rest if each.code == "step-cost-up"] == [
        ("step-cost-up", "async-off")
    ]


def test_a_check_of_the_setup_confirms_or_rules_out() -> None:
    gated = SideInfo(spec=ASKED_SPEC, rulings={"context-gate": "One long request stops drafting for its whole batch."})
    (first, *_) = diagnose({"spec": [ZERO]}, EXPECTED, asked=gated)
    assert first.code == "context-gated"
    assert first.evidence[0].startswith("One long request")
    (first, *_) = diagnose({"spec": [ZERO]}, EXPECTED, asked=SideInfo(spec=ASKED_SPEC, rulings={}))
    assert first.code == "zero-acceptance"
    assert "context-gated" not in first.candidates
    (first, *_) = diagnose({"spec": [ZERO]}, EXPECTED)
    assert "context-gated" in first.candidates
    assert first.settles == "draftwise watch URL --setup FILE"


def test_how_far_graphs_reach_does_not_say_that_a_batch_is_beyond() -> None:
    said = SideInfo(spec=ASKED_SPEC, rulings={"cudagraph-reach": "CUDA graphs reach 512 tokens a step."})
    (first, *_) = diagnose({"spec": [SLOWER]}, EXPECTED, asked=said)
    assert first.code == "step-cost-up"


def test_the_largest_graph_of_a_start_says_whether_a_batch_is_beyond() -> None:
    assert SLOWER.batch is not None
    tokens = SLOWER.batch * 4  # k = 3
    cliff = {"cudagraph-cliff": "With more requests than that a step runs without a graph."}
    for rulings in ({}, cliff):
        beyond = SideInfo(spec=ASKED_SPEC, rulings=rulings, log="", largest_graph=tokens - 1)
        (first, *rest) = diagnose({"spec": [SLOWER]}, EXPECTED, asked=beyond)
        assert first.code == "beyond-graphs"
        assert first.evidence[0].endswith(f"has {tokens:.0f} tokens, and the largest graph {tokens - 1:.0f}")
        assert ("step-cost-up", "beyond-graphs") in {(each.code, each.follows_from) for each in rest}
        within = replace(beyond, largest_graph=tokens)
        assert diagnose({"spec": [SLOWER]}, EXPECTED, asked=within)[0].code == "step-cost-up"
    unknown = SideInfo(spec=ASKED_SPEC, rulings=cliff)
    assert diagnose({"spec": [SLOWER]}, EXPECTED, asked=unknown)[0].code == "beyond-graphs"
    holes = replace(beyond, largest_graph=tokens, rulings={"graph-holes": "2 batch sizes find no full graph."})
    assert diagnose({"spec": [SLOWER]}, EXPECTED, asked=holes)[0].code == "beyond-graphs"


def test_what_costs_most_comes_first_and_what_follows_from_it_last() -> None:
    found = diagnose({"spec": [replace(ZERO, restarted=True)]}, EXPECTED, [], SideInfo(spec=ASKED_SPEC))
    explained = [bool(each.follows_from) for each in found]
    assert explained == sorted(explained)
    losses = [each.loss or 0.0 for each in found if not each.follows_from]
    assert losses == sorted(losses, reverse=True)
    codes = {each.code for each in found}
    assert all(each.follows_from in codes for each in found if each.follows_from)
