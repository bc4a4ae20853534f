"""The decision in words: which setting for which traffic up to which load, its scope, and when to undo it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.made_comparisons import adopted
from tests.support.made_runs import CONTEXT, Truth, arm, closed, gains, make_run, workload

from draftwise.core import Arm, CellLook, Condition, Counters, Omission, OpenLoop, Relation, Settled, Severity, Verdict
from draftwise.core.documents import to_json
from draftwise.deciding.bands import find_crossovers, gather_load_points
from draftwise.deciding.conclusions import conclude_run, gather_evidence
from draftwise.deciding.recommendations import find_rollbacks
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.signals import get_signal
from draftwise.reporting.conditions import (
    describe_omissions,
    describe_rollback,
    describe_rule,
    describe_scope,
    describe_signs,
    describe_unmeasured,
)
from draftwise.reporting.promql import write_alerts
from draftwise.reporting.sentences import describe_decision, describe_reason
from draftwise.reporting.summary import summarise

ARMS = [Arm(name="plain"), arm(3), arm(5)]
LOADS = closed(1, 4, 16)


def until(load: float, best: float, *, accepted: int = 1, k: int = 3) -> Truth:
    """A candidate that gains `best` alone, and nothing any more from a load on (its step grows with the load)."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        streams = condition.concurrency or 1
        growth = (best - 1) * (streams - 1) / (load - 1)
        return 0.010 * (accepted + 1) / best * (1 + growth)

    return Truth(step_s=step_s, ttft_s=lambda p, c: 0.001, accepted=lambda p: accepted, k=k, noise=0.005)


def fast_first(truth: Truth) -> Truth:
    return replace(truth, ttft_s=lambda p, c: 0.001, noise=0.005)


PLAIN = fast_first(Truth())


def test_the_load_up_to_which_it_pays_is_found_and_told() -> None:
    run = make_run({"plain": PLAIN, "ngram k=3": until(9, 1.6)}, conditions=LOADS, workloads=[workload(tokens=101)])
    decision = conclude_run(run).decision
    (crossover,) = decision.crossovers
    assert (crossover.axis, crossover.adopt_below) == ("concurrency", 4)
    assert crossover.value == pytest.approx(9, rel=0.1)
    assert crossover.low <= crossover.value <= crossover.high
    assert describe_decision(decision).startswith("On 2 cores of imaginary with fake, ngram k=3 answers code 1.")
    assert " concurrent requests (12 prompts), up to " in describe_decision(decision)
    assert describe_decision(decision).endswith("), then plain.")
    assert [band.setting for band in decision.bands] == ["ngram k=3", "plain"]
    assert "num_speculative_tokens_per_batch_size" in decision.schedules[0].spec.to_dict()
    (rule,) = describe_rollback(decision)
    assert "roll back if, for an hour, tokens per step stay under" in rule
    assert " concurrent requests, where the gain is gone (measured here: " in rule
    assert "there are more than " in rule
    assert "P99 of the time to the first token" in rule


def test_different_settings_for_different_loads() -> None:
    truths = {"plain": PLAIN, "ngram k=3": until(200, 1.5), "ngram k=5": until(6, 2.2, accepted=2, k=5)}
    run = make_run(truths, arms=ARMS, conditions=LOADS, workloads=[workload(tokens=101)])
    decision = conclude_run(run).decision
    assert [band.setting for band in decision.bands] == ["ngram k=5", "ngram k=3"]
    assert "ngram k=5 answers code 2." in describe_decision(decision)
    assert ", then ngram k=3 1." in describe_decision(decision)
    schedule = decision.schedules[0].spec.to_dict()["num_speculative_tokens_per_batch_size"]
    assert [row[2] for row in schedule] == [5, 3]
    light, heavy = sorted(describe_rollback(decision), reverse=True)
    assert re.search(r"; switch to ngram k=3 if, for an hour, there are more than \d+ concurrent requests\.$", light)
    assert "roll back if, for an hour, tokens per step stay under" in light
    assert "switch" not in heavy
    (change,) = (rule for rule in decision.rollback if rule.switch_to is not None)
    assert describe_rule(change).startswith(
        "Switch from ngram k=5 to ngram k=3 on code if, for an hour, there are more"
    )
    assert "alert: SpeculationSwitch" in write_alerts([change])


def test_a_candidate_that_pays_nowhere_leaves_everything_as_it_is() -> None:
    run = make_run({"plain": PLAIN, "ngram k=3": fast_first(gains(0.8))}, conditions=LOADS)
    decision = conclude_run(run).decision
    assert "leave code plain at every load measured: no candidate qualified" in describe_decision(decision)
    assert (decision.rollback, decision.schedules) == ((), ())
    assert decision.crossovers[0].value is None


def test_a_candidate_that_pays_everywhere_is_said_to_do_so_within_what_was_measured() -> None:
    decision = conclude_run(make_run({"plain": PLAIN, "ngram k=3": fast_first(gains(1.5))}, conditions=LOADS)).decision
    assert describe_decision(decision).endswith(" concurrent requests (12 prompts), at every load measured.")
    assert "load: 1, 4, 16 requests in flight" in describe_scope(decision.scope)


def test_workloads_that_gain_are_named_beside_those_that_do_not() -> None:
    """A mixed service: code gains, prose loses, one setting for both is a mixed result that says whose fault it is."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        return 0.020 / (1.8 if prompt_id.startswith("code") else 0.85)

    truth = Truth(step_s=step_s, accepted=lambda p: 1, k=3)
    run = make_run({"ngram k=3": truth}, workloads=[workload("code", 20), workload("prose", 20)])
    decision = conclude_run(run).decision
    verdicts = {each.workload: each for each in decision.comparisons}
    assert verdicts["code"].verdict is Verdict.ADOPT
    assert verdicts["prose"].verdict is Verdict.REJECT
    assert verdicts["all"].verdict is Verdict.MIXED
    words = describe_reason(verdicts["all"].reason)
    assert "of the requests are slower than 1.1 times the baseline's P90" in words
    assert "(prose 0.8" in words
    assert "leave prose plain" in describe_decision(decision)
    assert "no single setting pays for all of it" in describe_decision(decision)


def test_within_one_workload_the_losing_prompts_are_named_by_what_they_have_in_common() -> None:
    """Every fourth prompt drafts badly: its tokens per step say so."""

    def is_bad(prompt_id: str) -> bool:
        return int(prompt_id.split("-")[1]) % 4 == 0

    def step_s(prompt_id: str, condition: Condition) -> float:
        return 0.0125 if is_bad(prompt_id) else 0.0125 * 1.05

    truth = Truth(step_s=step_s, accepted=lambda p: 0 if is_bad(p) else 2, k=3, noise=0.01)
    (found,) = conclude_run(
        make_run({"ngram k=3": truth}, workloads=[workload(num_prompts=40, tokens=61)])
    ).decision.comparisons
    assert found.verdict is Verdict.MIXED
    assert "10 prompts with under" in describe_reason(found.reason)
    assert "tokens per step 0.8" in describe_reason(found.reason)


def test_a_gain_that_may_be_within_the_acceptance_settles_nothing() -> None:
    """2.25 times as fast on two tokens per step, but every other prompt by 1.3 only: chance, or something else."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        return 0.020 / (1.3 if int(prompt_id.rpartition("-")[2]) % 2 else 3.9)

    truth = Truth(step_s=step_s, ttft_s=lambda p, c: 0.001, accepted=lambda p: 1, k=3)
    run = make_run({"plain": PLAIN, "ngram k=3": truth}, workloads=[workload("code", 12)])
    (found,) = conclude_run(run).decision.comparisons
    assert found.deciding.low < 2 < found.deciding.value
    assert [(each.code, each.severity) for each in found.findings] == [("unexplained-speedup", Severity.WARNING)]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "there are too few prompts" in describe_reason(found.reason)


def test_what_blocks_a_part_blocks_the_whole() -> None:
    """Code is three times as fast on two tokens per step: something else is going on there."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        return 0.020 / (3.0 if prompt_id.startswith("code") else 1.2)

    truth = Truth(step_s=step_s, ttft_s=lambda p, c: 0.001, accepted=lambda p: 1, k=3)
    run = make_run({"plain": PLAIN, "ngram k=3": truth}, workloads=[workload("code", 10), workload("prose", 30)])
    verdicts = {each.workload: each for each in conclude_run(run).decision.comparisons}
    assert verdicts["prose"].verdict is Verdict.ADOPT
    assert "unexplained-speedup" in describe_reason(verdicts["code"].reason)
    assert verdicts["all"].verdict is Verdict.BLOCKED
    assert verdicts["all"].findings == ()


def test_ramps_are_no_sweep_and_are_told_one_by_one() -> None:
    ramp = OpenLoop(phases=(*OpenLoop.steady(1.0).phases, *OpenLoop.steady(3.0).phases))
    ramp = replace(ramp, phases=tuple(replace(phase, duration_s=5.0) for phase in ramp.phases))
    conditions = [*closed(1), Condition(load=ramp)]
    decision = conclude_run(make_run({"ngram k=3": gains(1.6)}, conditions=conditions)).decision
    assert decision.bands == ()
    assert "one request at a time, ngram k=3 answers code 1." in describe_decision(decision)
    assert "under 5s:1/s,5s:3/s, ngram k=3 answers code 1." in describe_decision(decision)


def test_temperatures_are_sweeps_of_their_own() -> None:
    conditions = [*closed(1, 4), *closed(1, 4, temperature=0.7)]
    decision = conclude_run(make_run({"ngram k=3": gains(1.6)}, conditions=conditions)).decision
    assert {each.temperature for each in decision.crossovers} == {0.0, 0.7}
    assert "at temperature 0.7, ngram k=3 answers code 1." in describe_decision(decision)


def test_the_scope_names_what_was_measured() -> None:
    context = {**CONTEXT, "hardware": {"gpus": ["NVIDIA H200, 143771 MiB, 570.1"], "cpu": "host"}}
    run = make_run({"ngram k=3": gains(1.5)}, workloads=[workload("code"), workload("prose")], context=context)
    assert describe_scope(conclude_run(run).decision.scope) == [
        "traffic: code (12 prompts), prose (12 prompts)",
        "load: 1 request at a time",
        "temperature: 0",
        "model: fake, bfloat16",
        "hardware: NVIDIA H200, 143771 MiB, 570.1",
        "server: fake-1",
    ]


def test_a_promised_first_token_is_the_limit_to_watch() -> None:
    context = {**CONTEXT, "thresholds": {"slo_ttft_s": 0.2}}
    (rule,) = describe_rollback(conclude_run(make_run({"ngram k=3": gains(1.5)}, context=context)).decision)
    assert "stays over the promised 200 ms" in rule


def test_nothing_measured_decides_nothing() -> None:
    decision = conclude_run(make_run({"ngram k=3": gains(1.5)}, keep=lambda turn: turn.arm == "plain")).decision
    assert describe_decision(decision).startswith("No workload has been measured on both sides")
    assert describe_unmeasured(decision) == ["ngram k=3, code, c=1: 0 of 3 repetitions"]


def test_candidates_left_out_for_one_reason_share_a_line() -> None:
    time = {"reason": "it would take 9 min, and 3 min are left"}
    names = ("eagle k=3", "mtp k=3")
    omissions = [Omission(what=f"candidate {name}", candidate=name, **time) for name in names]
    assert describe_omissions([Omission(what="repetition 5", **time), *omissions]) == [
        f"repetition 5: {time['reason']}",
        f"candidates eagle k=3 and mtp k=3: {time['reason']}",
    ]
    assert describe_omissions(omissions[:1]) == [f"candidate eagle k=3: {time['reason']}"]


@pytest.mark.parametrize(("pooled", "size"), [(False, 6), (True, 3)])
def test_many_comparisons_are_corrected_for(pooled: bool, size: int) -> None:
    """2 workloads under 3 loads; the pooled rows are a family of their own. Of six, all may count, each 1/0.8."""
    run = make_run({"ngram k=3": gains(1.02)}, conditions=closed(1, 2, 4), workloads=[workload("a"), workload("b")])
    found = [each for each in gather_evidence(run).comparisons if (each.workload == "all") is pooled]
    assert len(found) == size
    smallest = min(found, key=lambda each: each.p_value or 0.0)
    assert smallest.p_value is not None
    assert smallest.adjusted_p == pytest.approx(min(1.0, size * smallest.p_value / (1.0 if pooled else 0.8)))
    assert all((each.adjusted_p or 0) >= (each.p_value or 0) for each in found)


def test_a_run_pays_for_its_looks_and_a_cell_that_was_stopped_for_all_that_were_to_come() -> None:
    """The same readings give a wider interval where the cell might have been stopped before, and most where it was."""
    whole = make_run({"ngram k=3": gains(1.1)}, repeats=2)
    look = CellLook(workload="code", condition="c=1", candidate="ngram k=3", pairs=12, planned=36)
    stop = Settled(workload="code", condition="c=1", candidate="ngram k=3", passes=1, blocks=24, reason="settled")
    looked = replace(whole, looks=(look, replace(look, pairs=20)))
    stopped = replace(whole, looks=(look, replace(look, pairs=24)), settled=(stop,))
    spans = [gather_evidence(each).comparisons[0].speedup for each in (whole, looked, stopped)]
    widths = [each.high / each.low for each in spans]
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]
    assert len({round(each.value, 9) for each in spans}) == 1


def test_a_pass_that_is_not_sure_of_its_luck_settles_nothing() -> None:
    """Alone, 2 passes are 24 pairs of turns; under load they are 2."""
    run = make_run({"plain": PLAIN, "ngram k=3": fast_first(gains(1.5))}, conditions=closed(1, 4), repeats=2)
    alone, loaded = gather_evidence(run).comparisons
    assert alone.settled
    assert (loaded.verdict, loaded.settled) == (Verdict.ADOPT, False)


def test_adoption_ends_at_the_first_load_that_is_none() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, conditions=LOADS)
    evidence = gather_evidence(run)
    points, comparisons = gather_load_points(evidence.estimates), evidence.comparisons
    doubtful = [replace(e, verdict=Verdict.MIXED) if e.condition.label == "c=4" else e for e in comparisons]
    assert [each.adopt_below for each in find_crossovers(points, comparisons)] == [16]
    assert [each.adopt_below for each in find_crossovers(points, doubtful)] == [1]


def test_a_hiccup_is_no_tail() -> None:
    """One asking of one prompt took ten times as long."""
    run = make_run({"plain": PLAIN, "ngram k=3": fast_first(gains(1.5))})
    first = next(a for a in run.answers if a.arm == "ngram k=3")
    chunks = tuple((10 * time, count) for time, count in first.timing.chunks)
    slow = replace(first, timing=replace(first.timing, chunks=chunks, finished=chunks[-1][0]))
    (found,) = gather_evidence(replace(run, answers=tuple(slow if a is first else a for a in run.answers))).comparisons
    assert {each.of: each.answer for each in found.guards}["tail"] != "harm"
    assert found.verdict is Verdict.ADOPT


@pytest.mark.parametrize(("loads", "verdict"), [(1, Verdict.ADOPT), (12, Verdict.INCONCLUSIVE)])
def test_a_kept_promise_must_stand_among_all_comparisons_too(loads: int, verdict: Verdict) -> None:
    """8 of 40 prompts come within the SLO: enough for one comparison, chance among twelve."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        return 0.009 if int(prompt_id.split("-")[1]) < 8 else 0.010

    plain = replace(PLAIN, noise=0.0)
    helped = replace(plain, step_s=lambda p, c: 2 * step_s(p, c), accepted=lambda p: 1, k=3)
    conditions = [Condition(load=OpenLoop.steady(2.0 + i)) for i in range(loads)]
    context = {**CONTEXT, "thresholds": {"slo_e2e_s": 0.46}}
    run = make_run(
        {"plain": plain, "ngram k=3": helped},
        conditions=conditions,
        repeats=6,
        context=context,
        workloads=[workload(num_prompts=40)],
    )
    found = gather_evidence(run).comparisons[0]
    assert found.goodput == (0.0, 0.2)
    assert found.goodput_change is not None
    assert found.goodput_change.low > 0
    assert found.verdict is verdict


def test_goodput_of_an_open_loop_decides_where_a_promise_was_given() -> None:
    rate = (Condition(load=OpenLoop.steady(2.0)),)
    context = {**CONTEXT, "thresholds": {"slo_e2e_s": 0.5}}
    run = make_run({"ngram k=3": gains(1.6)}, conditions=rate, context=context, workloads=[workload(num_prompts=40)])
    (found,) = conclude_run(run).decision.comparisons
    assert found.goodput == (0.0, 1.0)
    assert found.goodput_change is not None
    assert found.goodput_change.low > 0.5
    assert found.verdict is Verdict.ADOPT


def test_a_failed_request_costs_goodput_and_no_latency() -> None:
    context = {**CONTEXT, "thresholds": {"slo_e2e_s": 10.0}}
    truth = replace(gains(1.6), fails=frozenset(f"code-{i}" for i in range(6)))
    (found,) = conclude_run(make_run({"ngram k=3": truth}, context=context)).decision.comparisons
    assert found.goodput == (1.0, 0.5)
    assert found.num_prompts == 6


@pytest.mark.parametrize(
    "reading", [lambda each: each.speedup, lambda each: each.throughput], ids=["request", "server"]
)
def test_in_a_closed_loop_requests_and_server_tell_the_same(reading: Callable) -> None:
    """Little's law: with a given number in flight, what requests gain the server gains."""
    run = make_run({"plain": PLAIN, "ngram k=3": fast_first(gains(1.5))}, conditions=closed(8), repeats=4)
    (found,) = gather_evidence(run).comparisons
    assert reading(found).value == pytest.approx(1.5 * 49 / 50, rel=0.04)


def test_points_along_the_load_are_the_ratios_that_decide() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, conditions=closed(4, 1))
    points = gather_load_points(gather_evidence(run).estimates)["code", "ngram k=3", 0.0, "concurrency"]
    assert [point.load for point in points] == [1, 4]
    by_label = {each.condition.label: each for each in gather_evidence(run).comparisons}
    assert points[0].estimate.value == pytest.approx(by_label["c=1"].speedup.value)
    throughput = by_label["c=4"].throughput
    assert throughput is not None
    assert points[1].estimate.value == pytest.approx(throughput.value)


def test_the_summary_is_json_with_everything_in_it() -> None:
    context = {**CONTEXT, "thresholds": {"slo_e2e_s": 0.5}}
    run = make_run({"ngram k=3": gains(1.5)}, conditions=LOADS, context=context)
    found = json.loads(json.dumps(to_json(summarise(conclude_run(run))), allow_nan=False))
    first = found["comparisons"][1]
    assert (first["condition"], first["load"], first["decided_by"]) == (
        "c=4",
        {"kind": "closed", "concurrency": 4},
        "tokens per second of the server",
    )
    assert set(first["percentiles"]) == {"ttft", "tpot", "itl", "e2e"}
    assert set(first["percentiles"]["tpot"]) == {"p50", "p90"}, "those that so many requests can bound"
    assert set(first["goodput"]) == {"plain", "candidate", "change"}
    assert first["deciding"] == first["throughput"]
    assert found["crossovers"][0]["high"] is None
    assert found["bands"][0]["up_to"] is None
    assert found["acceptance"][0]["source"] == "chunks"
    assert sum(found["acceptance"][0]["histogram"]["counts"]) == found["acceptance"][0]["num_requests"]
    assert found["latencies"][0]["percentiles_ms"]["send_lag"] == {}
    assert set(found) >= {"decision", "rollback", "scope", "unmeasured", "schedules", "latencies", "text_quality"}


def test_rollback_rules_are_values_that_name_metrics_of_a_server() -> None:
    run = make_run({"plain": PLAIN, "ngram k=3": until(9, 1.6)}, conditions=LOADS, workloads=[workload(tokens=101)])
    decision = conclude_run(run).decision
    *of_cells, load = decision.rollback
    assert {(each.workload, each.arm) for each in decision.rollback} == {("code", "ngram k=3")}
    assert [each.relation for each in of_cells] == 2 * [Relation.BELOW, Relation.ABOVE]
    assert [each.basis for each in of_cells] == 2 * ["break-even", "baseline"]
    assert [each.condition.label for each in of_cells] == ["c=1", "c=1", "c=4", "c=4"]
    end = decision.bands[0].up_to
    assert [each.loads for each in of_cells] == 2 * [(0, 1)] + 2 * [(1, end)]
    comparisons = {each.condition.label: each for each in decision.comparisons}
    for speed, first_token in zip(of_cells[::2], of_cells[1::2], strict=True):
        cell = comparisons[speed.condition.label]
        assert speed.measured == cell.counters.tokens_per_step
        assert speed.value == pytest.approx((speed.measured or 0) / cell.deciding.value)
        assert first_token.value == pytest.approx(1.2 * (first_token.measured or 0))
    assert of_cells[0].value < of_cells[2].value
    assert (load.basis, load.value, load.loads) == ("band end", end, None)
    metrics = {metric.sample for each in decision.rollback for metric in get_signal(each.metric).metrics}
    assert {"vllm:generation_tokens_total", "vllm:num_requests_running"} <= metrics


def test_the_summary_has_the_values_beside_the_sentences() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, conditions=LOADS, keep=lambda turn: turn.repeat < 3)
    found = json.loads(json.dumps(to_json(summarise(conclude_run(run))), allow_nan=False))
    assert len(found["rollback"]) == 1
    assert {each["metric"] for each in found["rollback_rules"]} == {"tokens_per_step", "ttft_p99_s"}
    assert found["scope_values"]["workloads"] == {"code": 12}
    assert found["scope_values"]["conditions"] == ["c=1", "c=4", "c=16"]
    assert [each["planned"] for each in found["unmeasured_cells"]] == [3, 3, 3]
    assert len(found["unmeasured"]) == 3


def test_without_counters_the_baselines_throughput_is_the_limit() -> None:
    run = make_run({"ngram k=3": gains(1.5)})
    comparison = adopted(1, counters=Counters())
    row = conclude_run(run).latencies[0]
    (rule, _) = find_rollbacks([comparison], (), [row], "plain", Thresholds())
    assert (rule.metric, rule.value) == ("output_tokens_per_s", row.throughput)
    # An idle server puts out less, too.
    assert rule.loads == (0, float("inf"))


def cooler_only() -> Truth:
    """A candidate that pays alone and at 4 when cold, and alone only when warm, where less is accepted."""

    def step_s(prompt_id: str, condition: Condition) -> float:
        streams = condition.concurrency or 1
        return 0.010 * (1.25 + 0.12 * streams) * (1.25 if condition.temperature else 1.0)

    return Truth(step_s=step_s, ttft_s=lambda p, c: 0.001, accepted=lambda p: 1, k=3, noise=0.005)


def test_every_temperature_has_rules_of_its_own() -> None:
    """The limit of the load that cold traffic bears must not stand over warm traffic, nor its tokens per step."""
    conditions = [*closed(1, 4, 16), *closed(1, 4, 16, temperature=0.8)]
    run = make_run(
        {"plain": PLAIN, "ngram k=3": cooler_only()}, conditions=conditions, workloads=[workload(tokens=101)]
    )
    decision = conclude_run(run).decision
    ends = {rule.condition.temperature: rule.value for rule in decision.rollback if rule.basis == "band end"}
    assert ends[0.8] < 4 <= ends[0.0] < 16
    cold, warm = describe_rollback(decision)
    assert cold.startswith("ngram k=3 on code at temperature 0: roll back if")
    assert warm.startswith("ngram k=3 on code at temperature 0.8: roll back if")
    assert " and " not in warm.partition("where the gain is gone")[0].partition("tokens per step")[2]
    # No rule holds for what was measured, or it would fire on the day of the adoption.
    by_label = {each.condition.label: each for each in decision.comparisons}
    for rule in decision.rollback:
        if rule.metric == "tokens_per_step":
            assert (by_label[rule.condition.label].counters.tokens_per_step or 0) > rule.value


def test_first_tokens_that_were_adopted_late_do_not_undo_the_adoption_at_once() -> None:
    late = replace(until(9, 1.6), ttft_s=lambda p, c: 0.00119)
    run = make_run({"plain": PLAIN, "ngram k=3": late}, conditions=closed(1), workloads=[workload(tokens=101)])
    found = conclude_run(run)
    (rule,) = [each for each in found.decision.rollback if each.metric == "ttft_p99_s"]
    reached = next(row for row in found.latencies if row.arm == "ngram k=3").percentiles_ms["ttft"][-1] / 1e3
    assert rule.value == pytest.approx(1.1 * reached)


def test_the_model_that_all_servers_name_is_known() -> None:
    """A server that runs already is asked for its model; only one that names none needs to be told."""
    servers = {name: each | {"model": "org/model"} for name, each in CONTEXT["servers"].items()}
    context = {**CONTEXT, "model": {"dtype": "bfloat16"}, "servers": servers}
    decision = conclude_run(make_run({"ngram k=3": gains(1.5)}, context=context)).decision
    assert (decision.missing_context, decision.scope.model) == ((), "org/model")
    servers["ngram k=3"] = servers["ngram k=3"] | {"model": "org/other"}
    decision = conclude_run(make_run({"ngram k=3": gains(1.5)}, context=context)).decision
    assert (decision.missing_context, decision.scope.model) == (("model",), "")


def test_the_sign_of_each_workload_is_its_own_and_the_closest_of_its_loads() -> None:
    decision = conclude_run(make_run({"ngram k=3": gains(1.5)})).decision
    (rule, *_) = (each for each in decision.rollback if each.metric == "tokens_per_step")
    rules = [
        replace(rule, workload=workload, value=value, measured=measured)
        for workload, value, measured in (("code", 2.4, 6.6), ("code", 2.0, 2.5), ("chat", 1.5, 2.2))
    ]
    assert describe_signs(replace(decision, rollback=tuple(rules))) == [
        "Roll back ngram k=3 on code if its tokens per step stay below 2.00 for an hour (measured: 2.50).",
        "Roll back ngram k=3 on chat if its tokens per step stay below 1.50 for an hour (measured: 2.20).",
    ]
    assert describe_signs(replace(decision, rollback=tuple(rules[:1]))) == [
        "Roll back ngram k=3 if its tokens per step stay below 2.40 for an hour (measured: 6.60)."
    ]
