"""Candidates leave a race for what was shown, prompt by prompt; halving is no claim and spares the two best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.statistics.racing import Leaver, LeaveReason, find_leavers, leads_surely

MANY = 1e9


def logs(rng: np.random.Generator, gains: dict[str, float], count: int, own: float = 0.14, se: float = 0.06):
    common = own * rng.standard_normal(count)
    return {
        name: dict(
            enumerate(math.log(gain) + common + own * rng.standard_normal(count) + se * rng.standard_normal(count))
        )
        for name, gain in gains.items()
    }


def by_name(found: list[Leaver]) -> dict[str, LeaveReason]:
    return {each.candidate: each.reason for each in found}


def test_a_candidate_without_a_gain_leaves_and_one_behind_the_best_too() -> None:
    found = find_leavers(
        logs(np.random.default_rng(0), {"best": 1.8, "worse": 1.3, "none": 0.9}, 20, own=0.05),
        margin=0.03,
        blocks_left=MANY,
        family=33,
    )
    assert by_name(found) == {"worse": LeaveReason.BEHIND, "none": LeaveReason.NO_GAIN}
    (behind,) = (each for each in found if each.reason is LeaveReason.BEHIND)
    assert behind.best == "best"
    assert behind.lead == pytest.approx(1.8 / 1.3, rel=0.1)
    assert behind.count == 20


@pytest.mark.parametrize("count", [6, 20, 86])
def test_alike_candidates_are_hardly_ever_told_apart(count: int) -> None:
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(200):
        wrong += bool(
            find_leavers(logs(rng, dict.fromkeys("abc", 1.1), count, own=0.3), margin=0.03, blocks_left=MANY, family=33)
        )
    assert wrong / 200 < 0.03


def test_the_pairing_tells_more_than_the_two_intervals_would() -> None:
    shared = dict(enumerate(np.linspace(-1, 1, 20)))
    mine = {"a": shared, "b": {n: value - 0.1 + 0.02 * (-1) ** n for n, value in shared.items()}}
    assert by_name(find_leavers(mine, margin=-0.9, blocks_left=MANY, family=33)) == {"b": LeaveReason.BEHIND}


def test_the_worse_half_leaves_while_the_leader_would_starve() -> None:
    mine = logs(np.random.default_rng(1), dict.fromkeys("abcdef", 1.1), 8, own=0.3)
    assert find_leavers(mine, margin=0.03, blocks_left=MANY, family=33) == []
    short = find_leavers(mine, margin=0.03, blocks_left=2, family=33)
    assert {each.reason for each in short} == {LeaveReason.NO_TIME}
    assert len(short) == 3
    means = {name: np.mean(list(each.values())) for name, each in mine.items()}
    assert {each.candidate for each in short} == set(sorted(means, key=means.get)[:3])
    two = {name: mine[name] for name in "ab"}
    assert find_leavers(two, margin=0.03, blocks_left=0, family=33) == []


def test_without_a_gain_to_show_those_leave_that_the_time_cannot_decide() -> None:
    means = {"best": 0.03, "a": 0.02, "b": 0.02, "slow": -0.07}
    mine = {
        name: {n: mean + 0.15 * (-1) ** (n >> bit) for n in range(16)} for bit, (name, mean) in enumerate(means.items())
    }
    assert find_leavers(mine, margin=0.03, blocks_left=MANY, family=33) == []
    found = find_leavers(mine, margin=0.03, blocks_left=15, family=33)
    assert by_name(found) == dict.fromkeys("ab", LeaveReason.NO_TIME), "a few more prompts show that one has no gain"


def test_a_sure_lead_is_far_surer_than_a_verdict() -> None:
    rng = np.random.default_rng(0)
    assert leads_surely(logs(rng, {"a": 2.0}, 20)["a"], margin=0.03, family=33)
    steady = {n: math.log(1.12) + 0.001 * (-1) ** n for n in range(20)}
    assert leads_surely(steady, margin=0.03, family=33)
    few = {n: steady[n] for n in range(6)}
    assert not leads_surely(few, margin=0.03, family=33), "kinds that six prompts leave out may lose it"
    chance = sum(leads_surely(logs(rng, {"a": 1.03}, 20)["a"], margin=0.03, family=1) for _ in range(1000))
    assert chance <= 3


def test_what_surely_pays_without_being_the_best_makes_room() -> None:
    """Too little apart to be told apart, and both far beyond the margin."""
    rng = np.random.default_rng(0)
    mine = logs(rng, {"a": 2.0, "b": 1.98}, 15, own=0.1)
    assert set(by_name(find_leavers(mine, margin=0.03, blocks_left=MANY, family=33)).values()) == {LeaveReason.PAYS}
    assert find_leavers({"a": mine["a"]}, margin=0.03, blocks_left=MANY, family=33) == []
