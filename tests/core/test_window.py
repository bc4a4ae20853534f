"""Readings of a window are ratios of sums: they pool, and say nothing where nothing is known."""

from dataclasses import fields, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import Counters, ServerLoad, SpecStats, Sums, Window

SPEC = SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=90, accepted_per_pos=(50, 25, 15))
SUMS = Sums(
    decode_s=6.0, prefill_s=2.0, queue_s=2.0, first_token_s=1.0, first_tokens=5, finished=4, finished_tokens=124,
    prompt_tokens=1000, engine_steps=40, preemptions=2,
)  # fmt: skip
WINDOW = Window(
    pool="spec",
    instance="http://a:8000",
    start_s=1000.0,
    duration_s=10.0,
    counters=Counters(spec=SPEC, generation_tokens=215, prefix_queries=1000, prefix_hits=600),
    load=ServerLoad(running=8.0, waiting=1.0, kv_usage=0.4),
    sums=SUMS,
    counts_drafts=True,
    sleeping=False,
    adapters=frozenset({"sql"}),
    uptime_s=500.0,
    cache_dtype="fp8",
)
READINGS = tuple(name for name, value in vars(Window).items() if isinstance(value, property))


def test_readings_are_ratios_of_sums() -> None:
    assert WINDOW.sequence_steps == 125
    assert WINDOW.tokens_per_step == pytest.approx(215 / 125)
    assert WINDOW.coverage == pytest.approx(0.8)
    assert WINDOW.acceptance_length == pytest.approx(1.9)
    assert WINDOW.mean_k == pytest.approx(3.0)
    assert WINDOW.wasted_per_token == pytest.approx(210 / 215)
    assert WINDOW.rate_per_pos == pytest.approx((0.5, 0.25, 0.15))
    assert WINDOW.conditional_rate_per_pos == pytest.approx((0.5, 0.5, 0.6))
    assert WINDOW.seconds_per_token == pytest.approx(0.05)
    assert WINDOW.step_s == pytest.approx(0.05 * (215 - 5) / (125 - 5)), "the first tokens of answers are no steps"
    assert WINDOW.output_tokens_per_s == pytest.approx(21.5)
    assert WINDOW.engine_steps_per_s == pytest.approx(4.0)
    assert WINDOW.preemptions_per_s == pytest.approx(0.2)
    assert WINDOW.finished_per_s == pytest.approx(0.4)
    assert WINDOW.prefix_hit_rate == pytest.approx(0.6)
    assert WINDOW.prefill_s_per_token == pytest.approx(0.005)
    assert WINDOW.decode_share == pytest.approx(0.6)
    assert WINDOW.mean_first_token_s == pytest.approx(0.2)
    assert WINDOW.mean_queue_s == pytest.approx(0.5)
    assert (WINDOW.mean_prompt_tokens, WINDOW.mean_output_tokens) == pytest.approx((250, 31))
    assert WINDOW.batch == 8.0


def test_what_is_accepted_is_unknown_where_the_server_does_not_tell() -> None:
    silent = replace(WINDOW, counters=replace(WINDOW.counters, spec=SpecStats()), tells_acceptance=False)
    assert (silent.tokens_per_step, silent.coverage, silent.sequence_steps, silent.step_s) == (None,) * 4
    assert replace(silent, tells_acceptance=True).tokens_per_step == 1.0
    accepted = replace(WINDOW, counters=replace(WINDOW.counters, spec=SpecStats(num_accepted_tokens=90)))
    assert accepted.tokens_per_step == pytest.approx(215 / 125)
    assert (accepted.coverage, accepted.wasted_per_token) == (None, None)


def test_a_draft_whose_tokens_are_not_counted_yet_is_no_more_than_full_coverage() -> None:
    ahead = replace(WINDOW.counters.spec, num_drafts=10 * WINDOW.counters.spec.num_drafts)
    assert replace(WINDOW, counters=replace(WINDOW.counters, spec=ahead)).coverage == 1.0


def test_tokens_per_step_is_one_more_than_coverage_times_what_stands() -> None:
    length, coverage = WINDOW.acceptance_length, WINDOW.coverage
    assert length is not None
    assert coverage is not None
    assert WINDOW.tokens_per_step == pytest.approx(1 + coverage * (length - 1))


@pytest.mark.parametrize("name", READINGS)
def test_nothing_is_read_from_nothing(name: str) -> None:
    silent = Window(pool="spec", instance="a", start_s=0.0, duration_s=1.0, counters=Counters())
    assert getattr(silent, name) in (None, ())
    idle = replace(silent, counters=WINDOW.counters - WINDOW.counters, sums=SUMS - SUMS, load=ServerLoad(running=0.0))
    assert not any(getattr(idle, name) if isinstance(getattr(idle, name), tuple) else (getattr(idle, name),))


counts = st.integers(0, 10**9)
sums = st.builds(Sums, **{each.name: st.none() | counts for each in fields(Sums)})


@given(sums, sums)
def test_sums_pool_and_part_again(a: Sums, b: Sums) -> None:
    for each in fields(Sums):
        mine, total = getattr(a, each.name), getattr(a + b, each.name)
        known = mine is not None and getattr(b, each.name) is not None
        assert (total is not None) == known
        assert getattr((a + b) - b, each.name) == (mine if known else None)


def test_engines_of_one_pool_are_read_as_one() -> None:
    other = replace(
        WINDOW,
        instance="http://b:8000",
        start_s=1000.1,
        duration_s=10.2,
        load=ServerLoad(running=4.0, waiting=0.0, kv_usage=0.9),
        counts_drafts=False,
        counters=replace(WINDOW.counters, spec=SpecStats()),
        uptime_s=20.0,
        restarted=True,
        adapters=frozenset({"chat"}),
        cache_dtype="auto",
    )
    both = Window.pooled([WINDOW, other])
    assert both is not None
    assert (both.pool, both.instance, both.engines) == ("spec", "http://a:8000, http://b:8000", 2)
    assert (both.start_s, both.duration_s) == pytest.approx((1000.0, 10.1))
    assert both.load == ServerLoad(running=12.0, waiting=1.0, kv_usage=0.9)
    assert both.batch == 6.0
    assert both.tokens_per_step == pytest.approx(430 / (430 - 90))
    assert both.seconds_per_token == WINDOW.seconds_per_token
    assert (both.counts_drafts, both.restarted, both.sleeping) == (True, True, False)
    assert (both.uptime_s, both.adapters, both.cache_dtype) == (20.0, {"sql", "chat"}, None)
    assert Window.pooled([]) is None


def test_pooling_is_in_any_order_the_same() -> None:
    windows = [replace(WINDOW, instance=name, duration_s=size) for name, size in (("a", 10.0), ("b", 11.0), ("c", 12))]
    left = (windows[0] + windows[1]) + windows[2]
    right = windows[0] + (windows[1] + windows[2])
    assert left == right


def test_what_one_engine_does_not_tell_is_not_known_of_the_pool() -> None:
    silent = replace(WINDOW, sums=replace(SUMS, decode_s=None), load=ServerLoad(running=1.0))
    both = WINDOW + silent
    assert both.seconds_per_token is None
    assert both.load.waiting is None
    assert both.load.kv_usage == 0.4


def test_a_histogram_bounds_quantiles_and_adds_up() -> None:
    window = replace(WINDOW, slower_than=((0.0, 200.0), (0.025, 90.0), (0.05, 3.0), (0.1, 0.0)))
    assert window.bound_quantile(0.5) == (0.0, 0.025)
    assert window.bound_quantile(0.99) == (0.05, 0.1)
    assert window.share_slower(0.05) == pytest.approx(0.015)
    assert (window + window).bound_quantile(0.99) == window.followed_by(window).bound_quantile(0.99) == (0.05, 0.1)
    assert (window + WINDOW).bound_quantile(0.5) is None, "of servers of which one has no histogram nothing is known"
    beyond = replace(window, slower_than=((0.0, 200.0), (0.025, 150.0)))
    assert beyond.bound_quantile(0.5) == (0.025, inf)


def test_what_was_before_an_engine_fell_asleep_is_left_out() -> None:
    awake, asleep = (replace(WINDOW, sleeping=sleeps) for sleeps in (False, True))
    assert awake.followed_by(asleep) == asleep
    whole = awake.followed_by(asleep).followed_by(awake)
    assert (whole.duration_s, whole.sleeping) == (2 * WINDOW.duration_s, True)
