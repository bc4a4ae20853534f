"""A few of the runs on servers that set traps, and what is a false verdict there."""

from __future__ import annotations

import random

import pytest
from trap_servers import TRAPS, Pair, is_false, list_runs, make_pair, run_one


@pytest.mark.parametrize("name", ["swapped/1", "other-model+clock/4", "restart+no-usage/8", "slow-start+rate-limit/5"])
def test_a_trap_makes_no_verdict_false(name: str) -> None:
    row = run_one(name)
    assert not row["false"], row


def test_a_gain_is_found_where_no_trap_is_set() -> None:
    assert run_one("none/1002")["verdict"] == "adopt"


def test_a_verdict_is_false_where_the_truth_is_another() -> None:
    said = {
        truth: [
            verdict
            for verdict in ("adopt", "reject", "no-gain", "inconclusive", "blocked", "mixed")
            if is_false(verdict, Pair(rng=random.Random(0), truth=truth, budget_s=60.0))
        ]
        for truth in (1.0, 1.27, 0.8)
    }
    assert said == {1.0: ["adopt", "reject"], 1.27: ["reject", "no-gain"], 0.8: ["adopt"]}
    void = Pair(rng=random.Random(0), truth=1.27, budget_s=60.0, is_void=True)
    assert is_false("adopt", void)
    assert not is_false("blocked", void)


def test_every_trap_is_set_alone_and_then_with_others() -> None:
    names = [each.partition("/")[0] for each in list_runs(60, 7)]
    assert names[: len(TRAPS)] == list(TRAPS)
    assert all("+" in each for each in names[len(TRAPS) :])
    assert all(make_pair(each, http=True)[1].workloads for each in list_runs(60, 7))
