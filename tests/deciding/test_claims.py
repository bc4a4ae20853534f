"""What a comparison says that is neither adopted nor rejected: no gain is left, or another candidate is faster."""

from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, arm, gains, make_run, workload

from draftwise.core import Arm, CellLook, Comparison, Estimate, Omission, Origin, Run, Settled, Verdict
from draftwise.deciding.conclusions import conclude_run, find_early_end, gather_evidence
from draftwise.reporting.sentences import describe_decision, describe_reason
from draftwise.reporting.summary import summarise
from draftwise.workloads import draw

ARMS = [Arm(name="plain"), arm(3), arm(5)]


def of_prompts(factor: float, spread: float, *, noise: float = 0.02, seed: int = 0) -> Truth:
    """A candidate that gains a factor on the whole, and otherwise on each prompt."""

    def step_s(prompt_id: str, condition: object) -> float:
        place = int(prompt_id.rpartition("-")[2])
        return 0.020 / factor * (1 + spread * ((7 * place + seed) % 5 - 2) / 2)

    return replace(gains(factor), step_s=step_s, noise=noise)


def left(run: Run, candidate: str, reason: str) -> Run:
    place = {"workload": "code", "condition": "c=1", "candidate": candidate}
    return replace(run, settled=(*run.settled, Settled(**place, passes=0, blocks=8, reason=reason)))


def run_of(factor: float, other: float = 1.3, *, spread: float = 0.0, seed: int = 0, prompts: int = 8) -> Run:
    truths = {"ngram k=3": of_prompts(factor, spread, seed=seed), "ngram k=5": replace(gains(other), k=5)}
    return make_run(truths, arms=ARMS, workloads=[workload(num_prompts=prompts)], repeats=1, seed=seed)


def judged(run: Run) -> Comparison:
    return gather_evidence(run).comparisons[0]


def test_what_is_slower_without_being_rejected_is_shown_as_no_gain_everywhere() -> None:
    run = run_of(0.65, other=0.9, spread=0.39)
    each = judged(run)
    assert each.deciding.high < 1
    assert (each.verdict, each.reason.code) == (Verdict.NO_GAIN, "no-gain")
    assert describe_reason(each.reason).startswith("slower: the interval rules out a gain of 3% or more")
    found = conclude_run(run)
    assert "(no gain in 2 of 2 comparisons)" in describe_decision(found.decision)
    assert summarise(found).comparisons[0].verdict == "no-gain"


def test_equal_is_no_gain() -> None:
    each = judged(make_run({"ngram k=3": gains(1.0)}, workloads=[workload(num_prompts=30)], repeats=2))
    assert (each.verdict, each.reason.code) == (Verdict.NO_GAIN, "equal")


@pytest.mark.parametrize(
    ("reason", "factor", "other", "verdict"),
    [
        ("no-gain", 0.97, 1.3, Verdict.NO_GAIN),
        ("no-gain", 1.2, 1.3, Verdict.INCONCLUSIVE),  # what came later contradicts it
        ("behind", 1.05, 1.25, Verdict.NOT_BEST),
        ("behind", 1.1, 1.0, Verdict.INCONCLUSIVE),
        ("no-time", 1.05, 1.25, Verdict.INCONCLUSIVE),
    ],
)
def test_what_the_race_has_shown_stays_shown_as_long_as_the_numbers_agree(reason, factor, other, verdict) -> None:
    each = judged(left(run_of(factor, other, spread=0.4), "ngram k=3", reason))
    assert each.verdict is verdict
    if reason == "no-time":
        assert "left out because time was short and ngram k=5 was ahead" in describe_reason(each.reason)


def test_a_doubt_comes_before_any_claim() -> None:
    few = left(run_of(0.7, prompts=5), "ngram k=3", "no-gain")
    assert judged(few).verdict is Verdict.INCONCLUSIVE
    assert judged(few).reason.code == "few-prompts"


def test_one_prompt_that_comes_back_is_one_prompt() -> None:
    run = run_of(1.6, prompts=40)
    assert judged(run).verdict is Verdict.ADOPT
    same = tuple(replace(each, text="the same") for each in run.plan.workloads[0].prompts)
    workloads = (replace(run.plan.workloads[0], prompts=same),)
    found = judged(replace(run, plan=replace(run.plan, workloads=workloads)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert describe_reason(found.reason) == "rests on 1 prompt; at least 6 are needed"


def test_a_gain_is_hardly_ever_called_none() -> None:
    found = [judged(run_of(1.12, spread=0.3, seed=seed, prompts=10)).verdict for seed in range(25)]
    assert found.count(Verdict.NO_GAIN) == 0


@pytest.mark.parametrize(("at_s", "prompts", "is_said"), [(100.0, 8, True), (100.0, 9, False), (340.0, 8, False)])
def test_a_run_that_ends_before_its_time_says_that_nothing_was_left_to_ask(at_s, prompts, is_said) -> None:
    run = run_of(1.0)
    whole = workload(num_prompts=prompts)
    end = Estimate(at_s=at_s, done=24, ahead=0, left_s=0.0)
    run = replace(run, plan=replace(run.plan, workloads=(whole,), minutes=6.0), estimates=(end,))
    late = Omission(what="the loads c=4", reason="only 0 s are left")
    assert not list(find_early_end(replace(run, omissions=(late,))))
    codes = [each.code for each in conclude_run(run).decision.findings]
    assert ("ended-early" in codes) is is_said


def test_a_log_whose_gain_depends_on_the_place_says_where() -> None:
    prompts = tuple(
        replace(each, origin=Origin(row=row, place=row)) for row, each in enumerate(workload(num_prompts=40).prompts)
    )
    parts = replace(gains(1.0), step_s=lambda prompt, _: 0.020 / (1.46 if int(prompt.split("-")[1]) < 15 else 0.7))
    whole = replace(workload(num_prompts=40), prompts=draw(prompts, 3, "code"), population=40)
    run = make_run({"ngram k=3": parts}, workloads=[whole], repeats=2)
    (each,) = gather_evidence(run).comparisons
    (found,) = (finding for finding in each.findings if finding.code == "gain-depends-on-place")
    assert found.message.startswith("the gain depends on the place of a prompt in the log: 1.3")
    assert "up to row 15, 0.7" in found.message
    assert each.log_itself is not None
    assert each.log_itself.high - each.log_itself.low < each.speedup.high - each.speedup.low
    even = make_run({"ngram k=3": gains(1.2)}, workloads=[whole], repeats=1)
    assert all(finding.code != "gain-depends-on-place" for finding in gather_evidence(even).comparisons[0].findings)


def test_those_that_left_for_lack_of_time_and_came_back_stop_early_by_the_last_word() -> None:
    run = run_of(1.2, prompts=30)
    place = {"workload": "code", "condition": "c=1", "candidate": "ngram k=3"}
    looks = tuple(CellLook(**place, pairs=count, planned=60) for count in (20, 30))
    end = Settled(**place, passes=0, blocks=30, reason="settled")
    once = judged(replace(run, looks=looks, settled=(end,)))
    assert judged(replace(run, looks=looks, settled=(replace(end, blocks=11, reason="no-time"), end))) == once
    assert once.deciding.low < judged(replace(run, looks=looks)).deciding.low, (
        "less of the error is spent before the end"
    )
