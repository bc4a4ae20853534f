"""Speculation that is off, another one than asked for, or off under load is told apart by counters and configs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_runs import with_context
from tests.support.validity import (
    ENDING,
    QUICKER,
    bend_answers,
    bend_turns,
    closed,
    codes,
    findings,
    graded,
    make_workload,
    opened,
    run_of,
)

from draftwise.core import (
    Answer,
    Condition,
    Counters,
    Run,
    Severity,
    SpecConfig,
    SpecStats,
    Timing,
    TurnRecord,
    Verdict,
)
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import conclude_run

SWEEP = (closed(1), closed(2), closed(4))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good", conditions=SWEEP)


def with_resolved(run: Run, config: dict[str, Any] | None) -> Run:
    servers = to_json(run.context)["servers"]
    version = {**servers["candidate 1"]["version"], "speculative_config": config}
    servers["candidate 1"] = {**servers["candidate 1"], "version": version}
    return with_context(run, servers=servers)


def with_spec(run: Run, **options: Any) -> Run:
    plain, candidate = run.plan.arms
    spec = SpecConfig.keep({"method": "ngram", "num_speculative_tokens": 3, **options})
    return replace(run, plan=replace(run.plan, arms=(plain, candidate.with_spec(spec))))


def drafting(run: Run, share: dict[str, float]) -> Run:
    """Return the run as if only so many of the drafts had been made, by condition."""

    def change(window: TurnRecord) -> TurnRecord:
        spec, kept = window.counters.spec, share.get(window.condition, 1.0)
        if not kept:
            return replace(window, counters=replace(window.counters, spec=type(spec)()))
        # The same drafts and acceptances; more tokens that no draft was made for.
        lost = int(spec.num_drafts * (1 - kept))
        fewer = replace(spec, num_drafts=spec.num_drafts - lost, num_draft_tokens=spec.num_draft_tokens - 3 * lost)
        return replace(window, counters=replace(window.counters, spec=fewer))

    return bend_turns(run, lambda window: change(window) if window.arm != "plain" else window)


def test_a_sweep_with_steady_drafting_is_clean(good: Run) -> None:
    assert codes(good) == set()


def counting(run: Run, arm: str, spec: SpecStats) -> Run:
    """Return the run with these drafts in each turn of an arm; measuring itself refuses what never changes."""
    return bend_turns(run, lambda w: replace(w, counters=replace(w.counters, spec=spec)) if w.arm == arm else w)


def test_a_server_that_never_drafts(good: Run) -> None:
    run = counting(good, "candidate 1", SpecStats())
    assert graded(run)["not-speculating"] is Severity.ERROR
    assert "/metrics counted no draft in " in findings(run)["not-speculating"].message


def test_a_server_that_never_drafts_and_says_why(good: Run) -> None:
    run = with_resolved(counting(good, "candidate 1", SpecStats()), None)
    assert findings(run)["not-speculating"].message.endswith("says that its speculative config is empty.")
    assert graded(run)["config-not-as-asked"] is Severity.ERROR


def hidden(run: Run, *arms: str) -> Run:
    """Return the run as if a gateway hid the counters of some arms."""
    return bend_turns(run, lambda w: replace(w, counters=Counters()) if w.arm in arms else w)


def in_events(run: Run, arm: str, size: int) -> Run:
    """Return the run as if an arm's stream had brought so many tokens an event."""

    def merge(timing: Timing) -> Timing:
        times = [time for time, count in timing.chunks for _ in range(count)]
        parts = [times[start : start + size] for start in range(0, len(times), size)]
        return replace(timing, chunks=tuple((part[0], len(part)) for part in parts))

    return bend_answers(run, lambda each: replace(each, timing=merge(each.timing)) if each.arm == arm else each)


def verdicts(run: Run) -> set[str]:
    return {each.verdict for each in conclude_run(run).decision.comparisons}


def test_a_stream_that_looks_like_speculation_is_no_proof_and_no_obstacle(good: Run) -> None:
    run = hidden(good, "candidate 1")
    assert graded(run) == {"speculation-unproven": Severity.WARNING}
    assert "adopt" in verdicts(run)
    assert conclude_run(run).decision.scope.unproven == ("candidate 1",)
    assert graded(hidden(good, "plain", "candidate 1")) == {"speculation-unproven": Severity.WARNING}


def test_a_stream_of_single_tokens_without_counters_blocks(good: Run) -> None:
    run = in_events(hidden(good, "candidate 1"), "candidate 1", 1)
    assert graded(run)["not-speculating"] is Severity.ERROR
    assert "holds no more text than one of the baseline's" in findings(run)["not-speculating"].message
    assert verdicts(run) == {"blocked"}


def test_a_gain_beyond_what_the_stream_explains_is_another_model(good: Run) -> None:
    """Without counters, too: a smaller model behind the candidate's URL is faster than its drafts are long."""
    mixed = in_events(hidden(good, "candidate 1"), "plain", 2)
    assert graded(mixed)["unexplained-speedup"] is Severity.ERROR
    assert verdicts(mixed) == {"blocked"}


def test_without_counters_outputs_must_show_the_model(tmp_path: Path) -> None:
    run = hidden(run_of(tmp_path / "run", conditions=(closed(1, 0.8),)), "candidate 1")
    assert graded(run)["not-speculating"] is Severity.ERROR
    assert "nothing shows that it serves the baseline's model" in findings(run)["not-speculating"].message


def test_an_engine_that_does_not_count_drafts_is_judged_by_its_stream(good: Run) -> None:
    servers = to_json(good.context)["servers"]
    servers["candidate 1"]["metric_names"] = "SGLang"
    undrafted = bend_turns(good, lambda w: replace(w, counters=replace(w.counters, spec=SpecStats())))
    assert graded(with_context(undrafted, servers=servers)) == {"speculation-unproven": Severity.WARNING}
    assert graded(undrafted)["not-speculating"] is Severity.ERROR


def uncounted(run: Run) -> Run:
    """Return the run as if no server had a page of counters."""
    servers = to_json(run.context)["servers"]
    servers = {name: {**each, "metric_names": None} for name, each in servers.items()}
    silent = bend_turns(run, lambda turn: replace(turn, counters=Counters(generation_tokens=None)))
    return with_context(silent, servers=servers)


def swapped(run: Run) -> Run:
    """Return the run as if the two URLs had been exchanged."""
    other = {"plain": "candidate 1", "candidate 1": "plain"}
    turns = tuple(replace(each, arm=other[each.arm]) for each in run.turns)
    return replace(run, turns=turns, answers=tuple(replace(each, arm=other[each.arm]) for each in run.answers))


def test_urls_that_are_swapped_show_in_the_streams_without_counters(good: Run) -> None:
    found = swapped(uncounted(good))
    assert findings(found)["swapped-servers"].severity is Severity.ERROR
    verdicts = {each.verdict for each in conclude_run(found).decision.comparisons}
    assert not verdicts & {Verdict.ADOPT, Verdict.REJECT}
    assert "swapped-servers" not in codes(uncounted(good))


def test_where_nothing_shows_who_speculates_there_is_no_verdict_either_way(good: Run) -> None:
    def one_by_one(answer: Answer) -> Answer:
        times = [time for time, count in answer.timing.chunks for _ in range(count)]
        return replace(answer, timing=replace(answer.timing, chunks=tuple((time, 1) for time in times)))

    for run in (uncounted(good), swapped(uncounted(good))):
        found = bend_answers(run, one_by_one)
        assert findings(found)["roles-unknown"].severity is Severity.ERROR
        verdicts = {each.verdict for each in conclude_run(found).decision.comparisons}
        assert not verdicts & {Verdict.ADOPT, Verdict.REJECT}


def test_counters_that_stand_still_are_those_of_another_server(good: Run) -> None:
    still = Counters(generation_tokens=0)
    run = bend_turns(good, lambda w: replace(w, counters=still) if w.arm != "plain" else w)
    assert graded(run)["counters-of-another-server"] is Severity.ERROR
    assert graded(run)["not-speculating"] is Severity.ERROR


def test_arms_on_different_hardware_are_not_compared(good: Run) -> None:
    servers = to_json(good.context)["servers"]
    servers["plain"]["hardware"], servers["candidate 1"]["hardware"] = "1x H200", "1x H100"
    assert graded(with_context(good, servers=servers))["arms-differ"] is Severity.ERROR


@pytest.mark.parametrize(
    ("resolved", "told"),
    [
        ({"method": "ngram", "num_speculative_tokens": 2}, "you asked for k=3, but the server uses k=2."),
        (
            {"method": "eagle3", "num_speculative_tokens": 3},
            "you asked for method 'ngram', but the server uses 'eagle3'.",
        ),
        ({}, "you asked for ngram k=3, but it runs without speculation."),
    ],
)
def test_another_config_than_asked_for(good: Run, resolved: dict[str, Any], told: str) -> None:
    run = with_resolved(good, resolved)
    assert graded(run) == {"config-not-as-asked": Severity.ERROR}
    assert findings(run)["config-not-as-asked"].message == told
    assert {each.verdict for each in conclude_run(run).decision.comparisons} == {"blocked"}


def test_the_config_as_asked_for_with_more_in_it(good: Run) -> None:
    resolved = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5}
    assert codes(with_resolved(good, resolved)) == set()


@pytest.mark.parametrize(("asked", "took"), [("deepseek_mtp", "mtp"), ("mtp", "qwen3_next_mtp")])
def test_a_method_under_its_family_name(good: Run, asked: str, took: str) -> None:
    run = with_resolved(with_spec(good, method=asked), {"method": took, "num_speculative_tokens": 3})
    assert codes(run) == set()


def test_drafts_that_are_always_shorter_than_asked(good: Run) -> None:
    run = with_spec(good, num_speculative_tokens=5)
    assert graded(run) == {"drafts-shorter": Severity.WARNING}
    assert "every draft has 3 tokens, but you asked for 5" in findings(run)["drafts-shorter"].message


def test_drafts_that_are_sometimes_shorter_belong_to_lookup_methods(good: Run) -> None:
    def shorter(window: TurnRecord) -> TurnRecord:
        spec = window.counters.spec
        fewer = replace(spec, num_draft_tokens=spec.num_draft_tokens - window.turn % 3)
        return replace(window, counters=replace(window.counters, spec=fewer))

    assert codes(bend_turns(good, lambda w: shorter(w) if w.arm != "plain" else w)) == set()


def test_drafting_that_fades_under_load(good: Run) -> None:
    run = drafting(good, {"c=2": 0.9, "c=4": 0.4})
    assert graded(run) == {"drafting-falls-with-load": Severity.WARNING}
    message = findings(run)["drafting-falls-with-load"].message
    assert "tokens per step at c=4" in message
    assert "at c=1" in message


def test_drafting_that_fades_as_it_was_told_to(good: Run) -> None:
    run = with_spec(drafting(good, {"c=4": 0.4}), num_speculative_tokens_per_batch_size=[[1, 2, 3], [3, 64, 1]])
    assert graded(run) == {"drafting-falls-with-load": Severity.INFO}


def test_a_little_less_drafting_is_nothing(good: Run) -> None:
    assert codes(drafting(good, {"c=4": 0.85})) == set()


def test_speculation_that_stops_under_load_is_not_speculation_that_is_off(good: Run) -> None:
    run = drafting(good, {"c=4": 0.0})
    found = graded(run)
    assert "not-speculating" not in found
    assert found["drafting-falls-with-load"] is Severity.WARNING
    # The answers still came as fast as with drafts: without any, that gain has another cause.
    assert found["not-speculating-under-load"] is Severity.ERROR
    assert "nothing at c=4" in findings(run)["not-speculating-under-load"].message
    verdicts = {each.condition.label: each.verdict for each in conclude_run(run).decision.comparisons}
    assert verdicts["c=4"] == "blocked"
    assert verdicts["c=1"] != "blocked"


def test_without_drafts_and_without_a_gain_nothing_is_claimed(tmp_path: Path) -> None:
    run = drafting(run_of(tmp_path / "run", replace(QUICKER, step_s=0.004 * 7 / 3), conditions=SWEEP), {"c=4": 0.0})
    assert graded(run)["not-speculating-under-load"] is Severity.INFO


def test_a_gain_beyond_the_acceptance(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", replace(QUICKER, accepted=(0, 0, 0, 1), step_s=0.002), repeats=1)
    assert graded(run) == {"unexplained-speedup": Severity.ERROR}


def test_a_queue_can_gain_more_than_its_server(tmp_path: Path) -> None:
    """With arrivals that do not wait, plain drowns and the candidate does not: any ratio can come of it."""
    conditions: tuple[Condition, ...] = (opened(14.0),)
    run = run_of(
        tmp_path / "run",
        replace(QUICKER, max_running=2),
        plain=replace(ENDING, max_running=2),
        conditions=conditions,
        repeats=2,
    )
    (found,) = conclude_run(run).decision.comparisons
    assert found.speedup.value > (found.counters.tokens_per_step or 0)
    assert "unexplained-speedup" not in codes(run)


def test_a_plain_server_that_speculates(good: Run) -> None:
    run = counting(good, "plain", SpecStats(num_drafts=3, num_draft_tokens=3, num_accepted_tokens=1))
    assert graded(run)["plain-speculates"] is Severity.ERROR


def test_a_plain_server_whose_events_hold_several_tokens_may_speculate(good: Run) -> None:
    def pairs(answer: Answer) -> Answer:
        if answer.arm != "plain":
            return answer
        chunks = answer.timing.chunks
        two = ((time, count + before) for (_, before), (time, count) in zip(chunks[1::2], chunks[2::2], strict=False))
        return replace(answer, timing=replace(answer.timing, chunks=(chunks[0], *two)))

    def silent(turn: TurnRecord) -> TurnRecord:
        return replace(turn, counters=Counters()) if turn.arm == "plain" else turn

    assert "plain-speculates" not in codes(bend_turns(good, silent))
    assert "plain-speculates" in codes(bend_answers(good, pairs)), "events are steps, as the candidate's show"
    found = findings(bend_turns(bend_answers(good, pairs), silent))["plain-speculates"]
    assert "holds 2.0 tokens, as if its server speculated" in found.message


@pytest.mark.parametrize(
    ("silent", "is_found"), [(range(60, 96), True), (range(0, 96, 3), False), (range(93, 96), False)]
)
def test_a_candidate_that_stops_drafting_is_told_from_one_that_drafts_nothing_now_and_then(
    tmp_path: Path, silent: range, is_found: bool
) -> None:
    run = run_of(tmp_path / "run", workloads=(make_workload(num_prompts=96),), repeats=1)
    order = [turn.turn for turn in run.turns if turn.arm == "candidate 1"]
    quiet = {order[place] for place in silent}

    def stop(turn: TurnRecord) -> TurnRecord:
        return replace(turn, counters=replace(turn.counters, spec=SpecStats())) if turn.turn in quiet else turn

    found = findings(bend_turns(run, stop)).get("not-speculating")
    assert (found is not None) is is_found
    assert not is_found or "in the last 36 of its 96 turns" in found.message


def test_acceptance_that_was_set_is_said_to_be(good: Run) -> None:
    assert graded(with_spec(good, rejection_sample_method="synthetic")) == {"acceptance-drawn": Severity.INFO}
