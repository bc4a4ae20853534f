"""The decision as a sentence for a colleague, and what to type after it."""

from dataclasses import replace

import pytest
from tests.support.made_comparisons import adopted, around, compared, decision_on, rejected
from tests.support.made_runs import gains, make_run

from draftwise.core import Arm, Band, Crossover, Reason, ReasonCode, Schedule, Scope, SpecConfig, Verdict
from draftwise.core.comparison import ALL
from draftwise.reporting.conditions import describe_way_back, list_actions
from draftwise.reporting.sentences import describe_decision, list_clauses


def bands(*stretches: tuple[float, float, str], workload: str = "code") -> list[Band]:
    return [
        Band(workload=workload, temperature=0.0, axis="concurrency", above=above, up_to=up_to, setting=setting)
        for above, up_to, setting in stretches
    ]


@pytest.mark.parametrize(
    ("hardware", "place"),
    [
        (("NVIDIA H200, 143771 MiB, 570.1",), "On NVIDIA H200 with org/model, "),
        (2 * ("NVIDIA H200, 143771 MiB, 570.1",), "On 2x NVIDIA H200 with org/model, "),
        (("8x H100, TP 4",), "On 8x H100, TP 4 with org/model, "),
        ((), "With org/model, "),
    ],
)
def test_it_begins_with_what_it_was_measured_on(hardware: tuple[str, ...], place: str) -> None:
    scope = Scope(workloads={}, conditions=(), hardware=hardware, model="org/model")
    assert describe_decision(decision_on([compared(verdict=Verdict.ADOPT)], scope=scope)).startswith(place)


def test_a_gain_stands_with_its_interval_its_prompts_and_its_price() -> None:
    late = compared(around(1.48, 0.05), verdict=Verdict.ADOPT, num_prompts=64, ttft=around(1.18))
    slower = compared(around(0.9), workload="rewrite", verdict=Verdict.REJECT)
    assert describe_decision(decision_on([late, slower, replace(slower, workload=ALL)])) == (
        "One request at a time, ngram k=3 answers code 1.48x as fast (1.41-1.55, 64 prompts, first token 18% "
        "later); leave rewrite plain; no single setting pays for all of it, so split the traffic."
    )


def test_a_workload_on_which_a_candidate_looks_faster_is_not_called_plain_for_good() -> None:
    """Three prompts decide nothing; that is no reason to say that speculation does not pay there."""
    won = compared(around(1.48, 0.05), verdict=Verdict.ADOPT)
    few = [compared(around(3.9, 0.2), workload=name, num_prompts=3) for name in ("rewrite", "prose")]
    flat = compared(around(1.0, 0.1), workload="chat")
    assert describe_decision(decision_on([won, *few, flat])) == (
        "One request at a time, ngram k=3 answers code 1.48x as fast (1.41-1.55, 20 prompts); leave chat plain; "
        "rewrite and prose are not decided yet and stay plain; no single setting pays for all of it, so split the "
        "traffic."
    )


def test_a_sweep_is_told_from_the_lightest_load_to_where_it_stops_paying() -> None:
    decision = decision_on(
        [adopted(1, 2.12), adopted(16, 1.05), rejected(32)], bands((0, 19, "ngram k=3"), (19, float("inf"), "plain"))
    )
    assert describe_decision(decision) == (
        "Ngram k=3 answers code 2.12x as fast (2.08-2.16) at 1 and 1.05x (1.03-1.07) at 16 concurrent requests (20 "
        "prompts), up to 19, then plain."
    )


@pytest.mark.parametrize(
    ("low", "high", "told"), [(3.9, 4.2, "the gain ends at about 4)"), (2.0, 9.0, "the gain ends at about 4, 2-9)")]
)
def test_a_crossover_that_is_known_to_the_request_has_no_interval(low: float, high: float, told: str) -> None:
    place = {"workload": "code", "candidate": "ngram k=3", "temperature": 0.0, "axis": "concurrency"}
    crossover = Crossover(**place, value=4.1, low=low, high=high, adopt_below=2)
    decision = decision_on(
        [adopted(2), rejected(8)],
        bands((0, 3, "ngram k=3"), (3, float("inf"), "plain")),
        crossovers=[crossover],
    )
    assert told in describe_decision(decision)


def test_a_gain_that_has_a_price_at_the_next_load_says_which() -> None:
    place = {"workload": "code", "candidate": "ngram k=3", "temperature": 0.0, "axis": "concurrency"}
    crossover = Crossover(**place, value=67.0, low=63.0, high=88.0, adopt_below=1)
    late = Reason(code=ReasonCode.LATE_FIRST_TOKEN, values={"ratio": 1.59})
    price = Reason(code=ReasonCode.GAIN_WITH_DAMAGE, values={"promise": False}, detail=late)
    mixed = replace(adopted(16, 1.19), verdict=Verdict.MIXED, reason=price)
    stretches = bands((0, 15, "ngram k=3"), (15, 23, "plain"), (23, 66, "ngram k=3"), (66, float("inf"), "plain"))
    decision = decision_on([adopted(1), mixed, adopted(34), rejected(128)], stretches, crossovers=[crossover])
    told = describe_decision(decision)
    assert "up to 15 (at 16 faster overall, but the first token takes 1.59x as long), then plain up to 23" in told
    assert "up to 66 (the gain ends at about 67, 63-88), then plain" in told


def test_a_candidate_that_pays_under_load_only_leaves_the_light_ones_plain() -> None:
    decision = decision_on([rejected(1), adopted(16)], bands((0, 8, "plain"), (8, float("inf"), "ngram k=3")))
    assert describe_decision(decision) == (
        "Leave code plain up to 8, then ngram k=3 1.50x as fast (1.47-1.53) at 16 concurrent requests (20 prompts)."
    )


def test_every_workload_is_a_clause() -> None:
    inf = float("inf")
    comparisons = [adopted(1), adopted(8), rejected(1, workload="prose"), rejected(8, workload="prose")]
    decision = decision_on(comparisons, [*bands((0, inf, "ngram k=3")), *bands((0, inf, "plain"), workload="prose")])
    assert [each[:22] for each in list_clauses(decision)] == ["Ngram k=3 answers code", "leave prose plain at e"]


RUN = make_run({"ngram k=3": gains(1.5)}, repeats=1)


def test_a_config_is_given_once_with_all_that_it_is_for() -> None:
    stretches = (0, 19, "ngram k=3"), (19, float("inf"), "plain")
    decision = decision_on(
        [adopted(1), rejected(32), adopted(1, workload="prose"), rejected(32, workload="prose")],
        [*bands(*stretches), *bands(*stretches, workload="prose")],
    )
    (action,) = list_actions(decision, RUN)
    assert action.heading == "ngram k=3, for code and prose at temperature 0, up to 19 concurrent requests"
    assert action.text == """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
    assert describe_way_back(decision, RUN) == "serve fake"


def test_a_schedule_says_for_which_temperature_it_is() -> None:
    stretches = (0, 4, "ngram k=5"), (4, 32, "ngram k=3"), (32, float("inf"), "plain")
    schedules = [
        Schedule(
            workload="code",
            temperature=temperature,
            spec=SpecConfig(method="ngram", num_speculative_tokens=k),
            remarks=(),
        )
        for temperature, k in ((0.0, 5), (0.8, 3))
    ]
    decision = replace(decision_on([adopted(1)], bands(*stretches)), schedules=tuple(schedules))
    *_, cold, warm = [action.heading for action in list_actions(decision, RUN)]
    assert cold == "Schedule by batch size, instead of switching by hand, for code at temperature 0"
    assert warm == "Schedule by batch size, instead of switching by hand, for code at temperature 0.8"


def test_a_server_whose_config_is_not_known_is_named_by_its_command_or_asked_for() -> None:
    plan = replace(RUN.plan, arms=(Arm(name="plain"), Arm(name="ngram k=3")))
    decision = decision_on([compared(verdict=Verdict.ADOPT)])
    (known,) = list_actions(decision, replace(RUN, plan=plan))
    assert known.text == "serve fake"
    bare = replace(RUN, plan=plan, context=replace(RUN.context, servers={}))
    (unknown,) = list_actions(decision, bare)
    assert unknown.text == ""
    (remark,) = unknown.remarks
    assert remark.startswith("Nothing to paste for ngram k=3: its server ran already")
    assert remark.endswith("--context 'command.ngram k=3=vllm serve ...'`.")
    assert describe_way_back(decision, bare) == "# the same command without --speculative-config"
