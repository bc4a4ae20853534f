"""Verdicts: the rule on given numbers, under each kind of load, and its error rates on simulated runs."""

import pytest
from tests.support.combinations import EVERY_CASE
from tests.support.made_comparisons import ALONE, ARRIVING, FASTER, LOADED, SAME, SLOWER, around, compared, interval
from tests.support.made_runs import Truth, closed, make_run, workload

from draftwise.core import Comparison, Condition, Finding, Interval, Severity, Verdict
from draftwise.core.comparison import GuardedHarm
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.comparison.comparisons import estimate_ratios
from draftwise.deciding.conclusions import gather_evidence
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.verdict import find_signature, judge
from draftwise.reporting.sentences import describe_reason

LIMITS = Thresholds()


def verdict_of(comparison: Comparison, *findings: Finding, **others) -> Verdict:
    return judge(comparison, findings, LIMITS, **others)[0]


@pytest.mark.parametrize(
    ("speedup", "verdict", "words"),
    [
        (interval(1.04, 1.5, 2.0), Verdict.ADOPT, "above 1.03"),
        (interval(1.02, 1.5, 2.0), Verdict.INCONCLUSIVE, "more prompts"),
        (interval(0.98, 1.0, 1.02), Verdict.INCONCLUSIVE, "equal within 3%"),
        (interval(0.90, 1.0, 1.2), Verdict.INCONCLUSIVE, "more prompts"),
        (interval(0.97, 0.98, 0.99), Verdict.INCONCLUSIVE, ""),
        (interval(0.80, 0.9, 0.96), Verdict.REJECT, "slower, with the whole interval below 0.97"),
        (interval(0.80, 0.9, 0.99), Verdict.NO_GAIN, "slower: the interval rules out a gain of 3% or more"),
        (interval(0.80, 0.9, 1.01), Verdict.INCONCLUSIVE, "more prompts"),
    ],
)
@pytest.mark.parametrize("condition", [ALONE, LOADED, ARRIVING], ids=["alone", "loaded", "arriving"])
def test_the_interval_decides(speedup: Interval, condition: Condition, verdict: Verdict, words: str) -> None:
    found, reason = judge(compared(speedup, condition), [], LIMITS)
    assert found is verdict
    assert words in describe_reason(reason)


def test_which_ratio_decides_depends_on_who_waits_for_whom() -> None:
    other = around(1.2)
    assert compared(FASTER, ALONE).deciding is FASTER
    assert compared(FASTER, LOADED, throughput=other).deciding is other
    assert compared(FASTER, ARRIVING, throughput=other).deciding is FASTER


@pytest.mark.parametrize(
    ("throughput", "tpot", "verdict", "words"),
    [
        (FASTER, around(0.7), Verdict.ADOPT, "faster"),
        (FASTER, around(1.3), Verdict.MIXED, "tokens per second of the server better, time per token"),
        (SLOWER, around(0.7), Verdict.MIXED, "time per token of a request better, tokens per second"),
        (SLOWER, around(1.0), Verdict.REJECT, "slower"),
        (FASTER, interval(0.9, 1.01, 1.1), Verdict.INCONCLUSIVE, "does not fall with it"),
        (SAME, around(0.7), Verdict.INCONCLUSIVE, "equal"),
    ],
)
def test_under_load_server_and_requests_must_agree(throughput, tpot, verdict, words) -> None:
    numbers = {"throughput": throughput, "total": throughput, "tpot": tpot}
    found, reason = judge(compared(SAME, LOADED, **numbers), [], LIMITS)
    assert found is verdict
    assert words in describe_reason(reason)


@pytest.mark.parametrize(
    ("speedup", "promise", "verdict"),
    [
        (SAME, interval(0.02, 0.1, 0.2), Verdict.ADOPT),
        (SAME, interval(-0.2, -0.1, -0.02), Verdict.REJECT),
        (FASTER, interval(-0.2, -0.1, -0.02), Verdict.MIXED),
        (SLOWER, interval(0.02, 0.1, 0.2), Verdict.MIXED),
        (FASTER, interval(-0.1, 0.0, 0.1), Verdict.ADOPT),
        (SLOWER, interval(-0.1, 0.0, 0.1), Verdict.REJECT),
    ],
)
def test_where_arrivals_do_not_wait_the_promise_comes_first(speedup, promise, verdict) -> None:
    found, reason = judge(compared(speedup, ARRIVING), [], LIMITS, promise=promise)
    assert found is verdict
    assert ("within the SLO" in describe_reason(reason)) == (promise.value != 0)


def test_a_broken_promise_makes_a_gain_under_load_mixed() -> None:
    assert verdict_of(compared(FASTER, LOADED), promise=interval(-0.2, -0.1, -0.02)) is Verdict.MIXED
    assert verdict_of(compared(SAME, LOADED), promise=interval(0.02, 0.1, 0.2)) is not Verdict.ADOPT


def finding(severity: Severity, code: str = "memory-leaks") -> Finding:
    return Finding(code=code, severity=severity, message="Something is wrong.")


def guarded(of: str, answer: str, value: float = 1.5) -> GuardedHarm:
    return GuardedHarm(of=of, answer=answer, value=value, count=20, needed=29 if answer == "no power" else 0)


@pytest.mark.parametrize(
    ("speedup", "guard", "severity", "verdict"),
    [
        (FASTER, ("tail", "harm"), Severity.INFO, Verdict.MIXED),
        (FASTER, ("tail", "excluded"), Severity.WARNING, Verdict.ADOPT),
        (FASTER, ("tail", "no power"), Severity.INFO, Verdict.ADOPT),
        (FASTER, ("first token", "harm"), Severity.INFO, Verdict.MIXED),
        (FASTER, ("first token", "no power"), Severity.INFO, Verdict.ADOPT),
        (FASTER, ("tail", "harm"), Severity.ERROR, Verdict.BLOCKED),
        (SLOWER, ("tail", "harm"), Severity.ERROR, Verdict.REJECT),
    ],
)
def test_what_takes_an_adoption_away(speedup, guard, severity, verdict) -> None:
    assert verdict_of(compared(speedup, guards=(guarded(*guard),)), finding(severity)) is verdict


def test_other_outputs_take_every_verdict_away() -> None:
    """The candidate is not the model that plain is: neither is slower."""
    for speedup in (FASTER, SLOWER, interval(0.80, 0.9, 0.99)):
        assert verdict_of(compared(speedup), finding(Severity.ERROR, "outputs-differ")) is Verdict.BLOCKED


def test_late_first_tokens_of_the_slowest_requests_take_it_away_too() -> None:
    late = {"ttft": {50: around(1.0), 99: interval(1.3, 1.6, 2.0)}}
    guards = (guarded("first token", "excluded"),)
    assert verdict_of(compared(FASTER, LOADED, percentiles=late, guards=guards)) is Verdict.MIXED
    assert verdict_of(compared(FASTER, LOADED, percentiles=late)) is Verdict.ADOPT, "a promise is judged instead"


HALF = {"tpot": {50: around(0.7)}}


@pytest.mark.parametrize(
    ("speedup", "verdict"), [(FASTER, Verdict.MIXED), (SAME, Verdict.MIXED), (SLOWER, Verdict.REJECT)]
)
def test_half_faster_and_many_slower_is_named_a_mixed_workload(speedup: Interval, verdict: Verdict) -> None:
    comparison = compared(speedup, percentiles=HALF, guards=(guarded("tail", "harm", 0.25),))
    found, reason = judge(comparison, [], LIMITS, losers="4 prompts with under 1.5 tokens per step 0.80x")
    told = describe_reason(find_signature(comparison, LIMITS))
    assert "P50 of the time per token is 0.70x the baseline's, but 25% of the requests are slower" in told
    assert found is verdict
    assert ("4 prompts with under 1.5" in describe_reason(reason)) == (verdict is Verdict.MIXED)


@pytest.mark.parametrize(
    ("half", "answer"),
    [(around(0.7), "no power"), (around(0.7), "excluded"), (around(0.99, 0.001), "harm"), (around(1.0), "harm")],
)
def test_what_is_no_signature(half: Interval, answer: str) -> None:
    comparison = compared(percentiles={"tpot": {50: half}}, guards=(guarded("tail", answer),))
    assert find_signature(comparison, LIMITS) is None


@pytest.mark.parametrize(
    ("count", "low", "verdict"),
    [
        (6, 1.14, Verdict.INCONCLUSIVE),
        (6, 1.17, Verdict.ADOPT),
        (12, 1.06, Verdict.INCONCLUSIVE),
        (12, 1.07, Verdict.ADOPT),
        (30, 1.031, Verdict.ADOPT),
    ],
)
def test_few_prompts_must_leave_room_for_a_kind_that_was_not_drawn(count: int, low: float, verdict: Verdict) -> None:
    comparison = compared(interval(low, 1.3, 1.5), num_prompts=count)
    found, reason = judge(comparison, [], LIMITS)
    assert found is verdict
    assert ("may miss a kind" in describe_reason(reason)) == (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("speedup", "enough", "less"), [(FASTER, 0.04, 0.047), (SLOWER, 0.009, 0.011)])
def test_what_the_number_of_comparisons_explains_is_no_verdict(speedup: Interval, enough: float, less: float) -> None:
    found, reason = judge(compared(speedup, adjusted_p=0.2), [], LIMITS)
    assert found is Verdict.INCONCLUSIVE
    assert "it may be chance (p 0.2)" in describe_reason(reason)
    assert verdict_of(compared(speedup, adjusted_p=enough)) is not Verdict.INCONCLUSIVE
    assert verdict_of(compared(speedup, adjusted_p=less)) is Verdict.INCONCLUSIVE


def test_a_loss_must_be_surer_than_a_gain_as_no_margin_keeps_chance_away() -> None:
    assert verdict_of(compared(SLOWER, adjusted_p=0.04)) is Verdict.INCONCLUSIVE


def test_an_inconclusive_verdict_states_its_power() -> None:
    wide = interval(0.9, 1.05, 1.2)
    reason = judge(compared(wide, detectable=1.2, prompts_needed=70), [], LIMITS, repetitions_needed=9)[1]
    assert (
        "a gain of 1.20x would have been found 8 times in 10; about 50 more prompts or 9 repetitions instead of 3"
        in describe_reason(reason)
    )
    assert "repetitions instead" not in in_words(compared(wide, detectable=1.2, prompts_needed=70))
    assert "only 79.0x or more; measure more repetitions" in in_words(compared(wide, detectable=79.0))
    assert "would have shown no gain at all; measure" in in_words(compared(wide, detectable=3e12))
    assert "too close to a limit" in in_words(compared(wide, detectable=1.2))
    assert "more prompts or repetitions would narrow it" in in_words(compared(wide))
    assert "more prompts would narrow it" in in_words(compared(wide, warm_speedup=2.0))


def in_words(comparison: Comparison) -> str:
    return describe_reason(judge(comparison, [], LIMITS)[1])


def verdicts(
    effect: float, num_prompts: int, *, streams: int = 1, count: int = 40 if EVERY_CASE else 20
) -> list[Verdict]:
    """Return the verdicts on simulated runs of 5 passes: 3 % noise a request, 3 % a prompt and arm, 1 % a turn."""
    found = []
    for seed in range(count):
        own = {f"code-{i}": 1 + 0.03 * ((7 * i + seed) % 5 - 2) / 1.4 for i in range(num_prompts)}
        truth = Truth(
            step_s=lambda prompt_id, condition, own=own: 0.020 / effect * own[prompt_id],
            ttft_s=lambda prompt_id, condition: 0.010 / effect,
            accepted=lambda prompt_id: 1,
            k=3,
            noise=0.03,
        )
        plain = Truth(ttft_s=lambda prompt_id, condition: 0.010, noise=0.03)
        run = make_run(
            {"plain": plain, "ngram k=3": truth},
            workloads=[workload(num_prompts=num_prompts, tokens=41)],
            conditions=closed(streams),
            repeats=5,
            seed=seed,
            turn_noise=0.01,
        )
        (comparison,) = gather_evidence(run).comparisons
        found.append(comparison.verdict)
    return found


@pytest.mark.parametrize(("num_prompts", "streams"), [(8, 1), (16, 4)])
def test_a_against_a_is_called_different_once_in_20_at_most(num_prompts: int, streams: int) -> None:
    found = verdicts(1.0, num_prompts, streams=streams)
    assert sum(each in (Verdict.INCONCLUSIVE, Verdict.NO_GAIN) for each in found) >= 0.95 * len(found)


@pytest.mark.parametrize("streams", [1, 4])
def test_a_ten_percent_effect_is_found_in_either_direction(streams: int) -> None:
    assert verdicts(1.10, 16, streams=streams, count=10).count(Verdict.ADOPT) >= 9
    assert verdicts(0.90, 16, streams=streams, count=10).count(Verdict.REJECT) >= 9


def test_a_sloppier_rule_would_fail_the_a_a_test() -> None:
    """Intervals that hold the truth every other time, and no margin: A against A is adopted or rejected."""
    found = []
    for seed in range(30):
        (cell,) = make_cells(make_run({"ngram k=3": Truth(k=3)}, repeats=2, seed=seed))
        found.append(verdict_of_margin_0(compared(estimate_ratios(cell).speedup.interval(0.5), num_prompts=9999)))
    assert found.count(Verdict.INCONCLUSIVE) <= 0.7 * len(found)


def verdict_of_margin_0(comparison: Comparison) -> Verdict:
    return judge(comparison, [], Thresholds(margin=0.0))[0]


def test_a_server_that_outputs_less_while_its_requests_take_no_longer_is_not_rejected() -> None:
    """A gateway that holds each request up before its first byte keeps the server waiting."""
    assert judge(compared(SLOWER, LOADED), [], Thresholds())[0] is Verdict.REJECT
    even = Interval(value=1.0, low=0.98, high=1.02)
    verdict, reason = judge(compared(SLOWER, LOADED, total=even), [], Thresholds())
    assert verdict is Verdict.INCONCLUSIVE
    assert "requests take no longer" in describe_reason(reason)
