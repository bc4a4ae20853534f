"""The first verdict is told as soon as there is one: where a candidate gains most is measured first."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support import virtual_time
from tests.support.made_runs import Truth, gains, make_run, workload
from tests.support.measuring import FASTER, PLAIN, make_plan, make_session, make_workload

from draftwise.core import Finding, Silent
from draftwise.measure.replan import describe_first_verdict, describe_lead, find_promising, interleave, put_first
from draftwise.measure.time_estimate import TextPace, TimeEstimate
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import Turn, plan_turns

WORKLOADS = (make_workload("code", 10), make_workload("prose", 10), make_workload("rewrite", 10))
PLAN = make_plan(2, workloads=WORKLOADS)
BLOCKS = interleave(plan_turns(PLAN, PLAN.conditions, 1))


def estimate(**seconds: float) -> TimeEstimate:
    """Return the estimate of servers of one pace, but candidate 2's on some workloads."""
    pace = {(arm.name, "c=1"): 0.01 for arm in PLAN.arms}
    texts = {("candidate 2", name, "c=1"): TextPace(per_token_s=each) for name, each in seconds.items()}
    return TimeEstimate(pace=pace, shares={}, texts=texts)


def places(blocks: Sequence[Sequence[Turn]]) -> list[str]:
    return [block[0].workload for block in blocks]


def test_the_place_of_the_greatest_gain_is_the_most_promising() -> None:
    assert find_promising(BLOCKS, estimate(code=0.009, rewrite=0.003, prose=0.02), "plain") == ("rewrite", "c=1")
    assert find_promising([], estimate(), "plain") is None


def test_so_many_blocks_as_a_verdict_needs_go_first_and_the_rest_stays_mixed() -> None:
    blocks = put_first(BLOCKS, ("rewrite", "c=1"))
    assert places(blocks[:8]) == ["rewrite"] * 8
    assert sorted(map(str, blocks)) == sorted(map(str, BLOCKS))
    rest = [block for block in BLOCKS if block not in blocks[:8]]
    assert blocks[8:] == rest


def test_an_adoption_is_told_with_what_it_rests_on() -> None:
    run = make_run({"plain": Truth(), "ngram k=3": gains(1.5)}, workloads=[workload()], repeats=1)
    told = describe_first_verdict(run, ("code", "c=1"))
    assert told is not None
    assert told.startswith("First verdict: code c=1: ngram k=3 1.")
    assert "adopt on 12 prompts" in told


def test_nothing_is_told_where_nothing_is_adopted() -> None:
    run = make_run({"plain": Truth(), "ngram k=3": gains(1.0)})
    assert describe_first_verdict(run, ("code", "c=1")) is None
    assert describe_first_verdict(replace(run, turns=(), answers=()), ("code", "c=1")) is None


def test_the_first_verdict_comes_long_before_the_first_repetition_ends(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    path = tmp_path / "run"

    class Counting(Silent):
        def notice(self, finding: Finding) -> None:
            if finding.code == "result-so-far":
                told.append((str(finding), len(RunDirectory(path).read().turns)))

    session = make_session(path, PLAN, (PLAIN, replace(FASTER, step_s=0.02), FASTER), progress=Counting())
    virtual_time.run(session.run())
    (line, turns), *_ = told
    assert (place := re.match(r"First verdict: (.*) c=1: candidate 2 ", line)) is not None
    assert 6 * 3 <= turns <= 8 * 3
    assert {turn.workload for turn in RunDirectory(path).read().turns[: 6 * 3]} == {place[1]}


def test_what_is_adopted_leads_before_what_only_looks_faster() -> None:
    run = make_run({"plain": Truth(), "ngram k=3": gains(1.5)})
    assert describe_lead(run).endswith(", adopt.")
