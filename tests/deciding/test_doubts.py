"""What was measured on a disturbed machine, on cold servers, or at swapped addresses carries no verdict."""

import re
from dataclasses import replace

import pytest
from tests.support.made_comparisons import SLOWER, compared
from tests.support.made_runs import CONTEXT, Truth, closed, gains, make_run, workload
from tests.support.validity import bend_turns, codes, findings, run_of

from draftwise.core import Comparison, Counters, Disturbance, Finding, ReasonCode, Run, Severity, Verdict
from draftwise.deciding.comparison.comparisons import compare_cells
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.verdict import UNSETTLING, VOIDING, judge, judge_cell
from draftwise.reporting.sentences import describe_decision, describe_reason

CANDIDATE = "ngram k=3"
REASON = "other processes used 1.00 of this machine's 2 cores"


def lose(run: Run, share: float) -> Run:
    """Return the run without that share of its paired blocks: something disturbed them."""
    keys = sorted({(turn.repeat, turn.block) for turn in run.turns})
    lost = set(keys[: round(share * len(keys))])
    gone = [turn for turn in run.turns if (turn.repeat, turn.block) in lost]
    numbers = {turn.turn for turn in gone}
    disturbed = (
        Disturbance(workload="code", condition="c=1", repeat=repeat, block=block, attempt=0, arm="plain", reason=REASON)
        for repeat, block in sorted(lost)
    )
    return replace(
        run,
        turns=tuple(turn for turn in run.turns if turn.turn not in numbers),
        answers=tuple(answer for answer in run.answers if answer.turn not in numbers),
        set_aside=tuple(gone),
        disturbances=tuple(disturbed),
    )


def only(run: Run) -> Comparison:
    (found,) = conclude_run(run).decision.comparisons
    return found


@pytest.mark.parametrize(("share", "verdict"), [(0.25, Verdict.ADOPT), (0.75, Verdict.INCONCLUSIVE)])
def test_half_of_the_blocks_must_be_left(share: float, verdict: Verdict) -> None:
    run = lose(make_run({CANDIDATE: gains(1.5)}, repeats=4), share)
    assert only(run).verdict is verdict
    (told,) = (each for each in conclude_run(run).decision.findings if each.code == "disturbed-blocks")
    assert told.severity is Severity.INFO
    assert REASON in told.message


def test_a_run_of_which_nothing_counts_says_so() -> None:
    decision = conclude_run(lose(make_run({CANDIDATE: gains(1.5)}, repeats=4), 1.0)).decision
    assert decision.comparisons == ()
    assert describe_decision(decision) == "Every paired block was disturbed, so there is nothing to decide."
    assert [each.severity for each in decision.findings if each.code == "disturbed-blocks"] == [Severity.WARNING]


def test_the_reason_counts_the_blocks_and_says_what_disturbed_them() -> None:
    run = lose(make_run({CANDIDATE: gains(1.5)}, repeats=4), 0.75)
    reason = describe_reason(only(run).reason)
    assert reason.startswith("36 of 48 pairs of turns were disturbed and do not count")
    assert REASON in reason


def cold(run: Run, arm: str) -> Run:
    """Return the run with the first turns of an arm half as fast again."""

    def change(answer):
        if answer.arm != arm or answer.repeat > 1 or answer.turn > 5:
            return answer
        sent = answer.timing.sent
        chunks = tuple((sent + 1.2 * (time - sent), count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks, finished=chunks[-1][0]))

    return replace(run, answers=tuple(map(change, run.answers)))


@pytest.mark.parametrize(
    ("cold_far", "code", "verdict"),
    [(0.5, "warm-up-short", Verdict.ADOPT), (0.1, "server-cold", Verdict.INCONCLUSIVE)],
)
def test_a_cold_server_decides_nothing(cold_far: float, code: str, verdict: Verdict) -> None:
    limits = {**CONTEXT, "thresholds": {"cold_far": cold_far}}
    run = cold(make_run({CANDIDATE: gains(1.5)}, repeats=4, context=limits), CANDIDATE)
    assert {each.code for each in conclude_run(run).decision.findings} - {"outputs-cut"} == {code}
    assert only(run).verdict is verdict
    assert (code in describe_reason(only(run).reason)) == (verdict is Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("where", "verdict"), [("another", Verdict.ADOPT), (CANDIDATE, Verdict.INCONCLUSIVE)])
def test_a_doubt_about_one_candidate_is_none_about_the_others(where: str, verdict: Verdict) -> None:
    run, limits = make_run({CANDIDATE: gains(1.5)}), Thresholds()
    (found,) = compare_cells(run, [], limits)
    doubt = Finding(code=UNSETTLING[0], severity=Severity.WARNING, message="it was cold.", where=where)
    assert judge_cell(found, [doubt], [], limits).verdict is verdict


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good")


def test_swapped_addresses_are_called_that(good: Run) -> None:
    """The counters of the two servers change places."""
    drafts = {turn.arm: turn.counters for turn in good.turns}
    other = {"plain": drafts["candidate 1"], "candidate 1": drafts["plain"]}
    swapped = bend_turns(good, lambda turn: replace(turn, counters=other[turn.arm]))
    assert "the URLs are swapped" in findings(swapped)["swapped-servers"].message
    assert not {"plain-speculates", "not-speculating"} & codes(swapped)


def test_a_candidate_without_counters_is_not_swapped(good: Run) -> None:
    drafts = next(turn.counters for turn in good.turns if turn.arm == "candidate 1")
    silent = bend_turns(
        good, lambda turn: replace(turn, counters=drafts if turn.arm == "plain" else Counters(generation_tokens=None))
    )
    assert "plain-speculates" in codes(silent)
    assert "swapped-servers" not in codes(silent)


@pytest.mark.parametrize("code", VOIDING)
def test_arms_that_are_not_what_they_are_said_to_be_reject_nothing(code: str) -> None:
    finding = Finding(code=code, severity=Severity.ERROR, message="an error.")
    verdict, reason = judge(compared(SLOWER), [finding], Thresholds())
    assert verdict is Verdict.BLOCKED
    assert code in describe_reason(reason)


def test_what_unsettles_is_a_warning_by_itself(good: Run) -> None:
    assert not codes(good) & {*UNSETTLING, *VOIDING}


def test_another_model_at_the_candidate_is_an_error(good: Run) -> None:
    servers = {
        arm: replace(good.context.server(arm), model=model)
        for arm, model in (("plain", "org/model-a"), ("candidate 1", "org/model-b"))
    }
    run = replace(good, context=replace(good.context, servers=servers))
    found = findings(run)["arms-differ"]
    assert found.severity is Severity.ERROR
    assert "org/model-b" in found.message
    assert only(run).verdict is Verdict.BLOCKED


def test_first_tokens_a_tenth_later_are_worth_saying() -> None:
    late = make_run({CANDIDATE: replace(gains(1.5), ttft_s=lambda prompt, load: 0.05 * 1.12, noise=0.12)})
    comparison = only(late)
    assert comparison.ttft is not None
    assert comparison.ttft.low < 1.10 < comparison.ttft.value
    (found,) = (each for each in comparison.findings if each.code == "ttft-damaged")
    assert found.severity is Severity.WARNING
    assert comparison.verdict is Verdict.ADOPT


def test_a_loss_of_first_tokens_that_may_be_none_is_a_note_with_what_would_tell() -> None:
    late = make_run({CANDIDATE: replace(gains(1.5), ttft_s=lambda prompt, load: 0.05 * 1.15, noise=0.7)})
    comparison = only(late)
    assert comparison.ttft is not None
    assert comparison.ttft.low < 1
    assert comparison.ttft.value > 1.10
    (found,) = (each for each in comparison.findings if each.code == "ttft-damaged")
    assert found.severity is Severity.INFO
    assert "may come later" in found.message
    assert re.search(r"About \d+ times as many prompts would settle it", found.fix)


def test_first_tokens_of_which_nothing_is_known_promise_no_number_of_prompts() -> None:
    wild = make_run({CANDIDATE: replace(gains(1.5), ttft_s=lambda prompt, load: 0.05 * 1.15, noise=60.0)})
    (found,) = (each for each in only(wild).findings if each.code == "ttft-damaged")
    assert "(interval not known). The interval does not rule out a loss" in found.message
    assert found.fix == "More prompts would settle it."


def slow_stretch(run: Run, arm: str, repetitions: tuple[int, ...], factor: float) -> Run:
    """Return the run with every answer of an arm in some repetitions so many times as slow."""

    def change(answer):
        if answer.arm != arm or answer.repeat not in repetitions:
            return answer
        sent = answer.timing.sent
        chunks = tuple((sent + factor * (time - sent), count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks, finished=chunks[-1][0]))

    return replace(run, answers=tuple(map(change, run.answers)))


@pytest.mark.parametrize("truth", [1.0, 1.3])
def test_a_server_that_was_slow_for_a_third_of_the_run_settles_nothing(truth: float) -> None:
    run = slow_stretch(make_run({CANDIDATE: gains(truth)}, repeats=6), CANDIDATE, (3, 4), 8.0)
    found = only(run)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason is not None
    assert found.reason.code in (ReasonCode.SLOW_SERVER, ReasonCode.PACE_CHANGED)


@pytest.mark.parametrize("truth", [1.0, 1.5])
@pytest.mark.parametrize(("arm", "factor"), [("plain", 2.0), (CANDIDATE, 2.0), ("plain", 1.4)])
def test_a_server_that_was_slow_at_the_start_is_named(arm: str, factor: float, truth: float) -> None:
    run = slow_stretch(make_run({CANDIDATE: gains(truth)}, repeats=4), arm, (1, 2), factor)
    found = only(run)
    assert found.verdict is Verdict.INCONCLUSIVE
    if truth > 1 or arm == "plain":
        assert found.reason is not None
        assert found.reason.code in (ReasonCode.SLOW_SERVER, ReasonCode.PACE_CHANGED)


def test_what_slows_both_servers_down_changes_nothing() -> None:
    run = make_run({CANDIDATE: gains(1.5)}, repeats=6)
    for arm in ("plain", CANDIDATE):
        run = slow_stretch(run, arm, (4, 5, 6), 1.4)
    assert only(run).verdict is Verdict.ADOPT


def test_prompts_that_gain_otherwise_when_they_come_back_settle_nothing() -> None:
    """The steps kept their pace, and the candidate's first tokens did not."""

    def later(answer):
        if answer.arm != CANDIDATE or answer.repeat == 1:
            return answer
        timing = answer.timing
        moved = tuple((time + 0.045, count) for time, count in timing.chunks)
        return replace(answer, timing=replace(timing, chunks=moved, finished=timing.finished + 0.045))

    run = make_run({CANDIDATE: gains(3.0)}, repeats=2)
    found = only(replace(run, answers=tuple(map(later, run.answers))))
    assert found.reason is not None
    assert (found.verdict, found.reason.code) == (Verdict.INCONCLUSIVE, ReasonCode.ANCHORS_MOVED)


def test_a_server_whose_pace_changed_little_is_no_doubt() -> None:
    run = slow_stretch(make_run({CANDIDATE: gains(1.5)}, repeats=6), "plain", (4, 5, 6), 1.08)
    assert only(run).verdict is Verdict.ADOPT


def slow_server(factor: float, *, first: float | None = None, accepted: int = 0, k: int = 3) -> Truth:
    """A server that takes so many times as long for a decoding step, and by default for the first token."""
    return Truth(
        step_s=lambda prompt_id, condition: 0.010 * factor,
        ttft_s=lambda prompt_id, condition: 0.050 * (factor if first is None else first),
        accepted=lambda prompt_id: accepted,
        k=k,
    )


@pytest.mark.parametrize(
    ("truths", "loser"),
    [
        ({CANDIDATE: slow_server(2.5)}, CANDIDATE),
        ({"plain": slow_server(2.5, k=0), CANDIDATE: slow_server(1.0, accepted=1)}, "plain"),
    ],
)
def test_a_server_that_is_slow_in_all_it_does_is_not_judged_by_it(truths: dict[str, Truth], loser: str) -> None:
    found = only(make_run(truths, repeats=4))
    assert found.verdict is Verdict.INCONCLUSIVE
    words = describe_reason(found.reason)
    assert re.match(rf"a decoding step on the server of {loser} takes 2\.[56]x as long as on the other one", words)


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize(("late", "verdict"), [(1.4, Verdict.INCONCLUSIVE), (1.0, Verdict.ADOPT)])
def test_a_gain_that_first_tokens_have_as_well_is_a_slow_baseline(late: float, verdict: Verdict, streams: int) -> None:
    """Its steps are no longer than the candidate's, which verify drafts: only first tokens tell."""
    baseline = Truth(step_s=lambda prompt, load: 0.010 * 1.4, ttft_s=lambda prompt, load: 0.050 * late)
    found = only(make_run({"plain": baseline, CANDIDATE: gains(1.0)}, repeats=4, conditions=closed(streams)))
    assert found.verdict is verdict
    if late > 1:
        assert describe_reason(found.reason).startswith("the first token of plain takes 1.4x as long as well")


def test_a_gain_of_the_typical_request_that_long_answers_lose_is_none() -> None:
    prompts = workload(num_prompts=30).prompts
    long = tuple(replace(each, max_tokens=600 if n % 10 == 0 else 50) for n, each in enumerate(prompts))
    lost = {each.id for each in long if each.max_tokens > 50}
    mine = replace(gains(1.4), step_s=lambda prompt, load: 0.020 / 1.4 * (3.0 if prompt in lost else 1.0))
    kinds = [replace(workload(num_prompts=30), prompts=long)]
    found = only(make_run({CANDIDATE: mine}, workloads=kinds, repeats=1))
    assert found.deciding.low > 1.03
    assert (found.verdict, found.reason.code) == (Verdict.INCONCLUSIVE, ReasonCode.LONG_ANSWERS)


def test_steps_that_verify_much_and_do_not_pay_are_rejected() -> None:
    """The first token comes as late as in the demo, where drafters compute the prompt as well."""
    assert only(make_run({CANDIDATE: slow_server(2.5, first=1.25)}, repeats=4)).verdict is Verdict.REJECT


def test_slowness_in_everything_that_lasts_is_the_servers_own() -> None:
    run = make_run({CANDIDATE: slow_server(2.5)}, repeats=4)
    lasting = bend_turns(run, lambda turn: replace(turn, wall_s=10.0))
    assert only(lasting).verdict is Verdict.REJECT


@pytest.mark.parametrize(("repeats", "verdict"), [(3, Verdict.INCONCLUSIVE), (4, Verdict.REJECT)])
def test_under_load_the_first_token_waits_for_the_steps_of_others(repeats: int, verdict: Verdict) -> None:
    """So it says that a server is slow only where all turns may have been in one spell."""
    run = make_run({CANDIDATE: slow_server(2.5)}, repeats=repeats, conditions=closed(4))
    assert only(run).verdict is verdict


def begins_after(seconds: float, *, k: int, accepted: int = 0) -> Truth:
    """A server whose first token comes so late, and whose steps take as long as any."""
    return Truth(ttft_s=lambda prompt_id, condition: seconds, accepted=lambda prompt_id: accepted, k=k)


@pytest.mark.parametrize(
    ("truths", "late"),
    [
        ({"plain": begins_after(0.25, k=0)}, "plain"),
        ({CANDIDATE: begins_after(0.25, k=3)}, CANDIDATE),
    ],
)
def test_a_server_that_only_begins_later_has_something_in_front_of_it(truths: dict[str, Truth], late: str) -> None:
    found = only(make_run({CANDIDATE: begins_after(0.05, k=3), **truths}, repeats=4))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert describe_reason(found.reason).startswith(f"{late} only begins later: its first token takes 5.0x as long")


def test_under_load_plain_that_only_begins_later_is_no_gain() -> None:
    truths = {"plain": begins_after(0.25, k=0), CANDIDATE: begins_after(0.05, k=3)}
    found = only(make_run(truths, repeats=6, conditions=closed(4)))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "begins later" in describe_reason(found.reason) or "does not fall" in describe_reason(found.reason)


def test_a_candidate_that_decodes_faster_and_begins_later_may_gain() -> None:
    """Both together are no difference: what stands in front of the server hides what its steps gain."""
    found = only(make_run({CANDIDATE: begins_after(0.3, k=3, accepted=1)}, repeats=6))
    assert found.tpot is not None
    assert found.tpot.high < 1
    assert found.verdict is Verdict.INCONCLUSIVE
    assert describe_reason(found.reason).startswith(f"{CANDIDATE} only begins later")


def test_one_that_decodes_faster_as_well_is_judged_by_it() -> None:
    truths = {"plain": begins_after(0.08, k=0), CANDIDATE: begins_after(0.05, k=3, accepted=1)}
    assert only(make_run(truths, repeats=4)).verdict is Verdict.ADOPT
    truths = {CANDIDATE: replace(begins_after(0.25, k=3), step_s=lambda prompt_id, condition: 0.015)}
    assert only(make_run(truths, repeats=4)).verdict is Verdict.REJECT


def test_a_drafter_that_takes_as_long_for_the_prompt_as_the_target_is_rejected() -> None:
    """What it costs is its own."""
    assert only(make_run({CANDIDATE: begins_after(0.1, k=3)}, repeats=4)).verdict is Verdict.REJECT
