"""Which setting at which load: bands from verdicts, their ends, and the engine's own schedule made from them."""

import json
import math
from dataclasses import replace

import pytest
from tests.support.made_comparisons import adopted, around, compared, decision_on, rejected
from tests.support.made_runs import CONTEXT, arm, closed, workload

from draftwise.core import (
    Arm,
    Band,
    ClosedLoop,
    Comparison,
    Condition,
    Crossover,
    OpenLoop,
    Run,
    RunContext,
    RunPlan,
    Setup,
    SingleSetting,
    SpecConfig,
    Verdict,
)
from draftwise.core.comparison import ALL
from draftwise.core.documents import from_json
from draftwise.deciding.bands import find_bands, find_rises, find_single_settings, propose_schedules
from draftwise.plan.schedule.draft_lengths import KEY
from draftwise.reporting.conditions import describe_single_settings
from draftwise.reporting.units import format_load
from draftwise.setups.read import read_setups
from draftwise.statistics import LoadPoint, RatioEstimate, Spread


def told(comparisons: list[Comparison], *crossovers: Crossover) -> list[tuple[float, float, str]]:
    return [
        (band.above, band.up_to, band.setting) for band in find_bands(comparisons, crossovers, "plain", margin=0.03)
    ]


def crossing(value: float, candidate: str = "ngram k=3") -> Crossover:
    return Crossover(
        workload="code",
        candidate=candidate,
        temperature=0.0,
        axis="concurrency",
        value=value,
        low=value / 2,
        high=value * 2,
        adopt_below=None,
    )


def test_plain_decoding_begins_at_the_crossover() -> None:
    loads = [adopted(1), adopted(8), rejected(32)]
    assert told(loads, crossing(20.5)) == [(0, 20, "ngram k=3"), (20, math.inf, "plain")]


@pytest.mark.parametrize(("value", "end"), [(3.0, 8), (500.0, 31)])
def test_a_crossover_that_contradicts_the_verdicts_is_held_between_them(value: float, end: int) -> None:
    assert told([adopted(1), adopted(8), rejected(32)], crossing(value))[0] == (0, end, "ngram k=3")


def test_without_a_crossover_a_band_ends_where_the_candidate_was_last_shown_to_pay() -> None:
    assert told([adopted(4), rejected(64)])[0][1] == 4


@pytest.mark.parametrize(("error", "num_found"), [(0.03, 1), (0.12, 0)])
def test_a_gain_that_returns_under_more_load_is_told(error: float, num_found: int) -> None:
    def point(load: float, ratio: float) -> LoadPoint:
        spread = Spread(variance=error**2, degrees=100, lasting=0.0, num_prompts=100, num_blocks=100)
        return LoadPoint(load=load, estimate=RatioEstimate(log=math.log(ratio), spread=spread))

    line = [point(1, 1.3), point(64, 1.0), point(128, 0.8), point(256, 1.2)]
    sweeps = {(name, "ngram k=3", 0.0, "concurrency"): line for name in ("code", ALL)}
    findings = list(find_rises(sweeps))
    assert [each.code for each in findings] == ["gain-returns"] * num_found
    assert all("slower on code at 128 (" in str(each) and "again at 256 (" in str(each) for each in findings)
    assert not list(find_rises(dict.fromkeys(sweeps, line[:3])))


def test_different_candidates_win_in_different_bands() -> None:
    deep = {"candidate": "ngram k=5"}
    loads = [
        adopted(1, 1.5), adopted(1, 2.0, **deep), adopted(16, 1.4), adopted(16, 1.1, **deep),
        rejected(64), rejected(64, **deep),
    ]  # fmt: skip
    assert told(loads) == [(0, 4, "ngram k=5"), (4, 16, "ngram k=3"), (16, math.inf, "plain")]


def test_a_switch_must_be_worth_it() -> None:
    """At 16 the other is better by less than the interval of the one that runs already."""
    deep = {"candidate": "ngram k=5"}
    loads = [adopted(1, 1.5), adopted(1, 2.0, **deep), adopted(16, 1.41), adopted(16, 1.4, **deep)]
    assert told(loads) == [(0, math.inf, "ngram k=5")]


def test_candidates_within_the_margin_of_each_other_share_a_band() -> None:
    """Nobody deploys two drafters for 1.48x against 1.47x: the one that can stay over more loads is set."""
    other = {"candidate": "dflash"}
    loads = [
        adopted(1, 1.47), adopted(1, 1.48, **other), adopted(8, 1.35), adopted(8, 1.35, **other),
        adopted(32, 1.34), adopted(32, 1.10, **other),
    ]  # fmt: skip
    assert told(loads) == [(0, math.inf, "ngram k=3")]
    worth = [adopted(1, 1.47), adopted(1, 1.60, **other), adopted(32, 1.34), adopted(32, 1.10, **other)]
    assert [setting for *_, setting in told(worth)] == ["dflash", "ngram k=3"]


def single(comparisons: list[Comparison]) -> tuple[SingleSetting, ...]:
    return find_single_settings(comparisons, find_bands(comparisons, (), "plain", margin=0.03), "plain")


def test_the_best_setting_for_all_loads_says_what_it_loses_where() -> None:
    deep = {"candidate": "ngram k=5"}
    loads = [adopted(1, 1.5), adopted(1, 2.0, **deep), adopted(16, 1.4), rejected(16, **deep), rejected(64)]
    (found,) = single([*loads, rejected(64, **deep)])
    assert found.setting == "ngram k=3"
    assert found.gains == {1: (1.5, 2.0), 16: (1.4, 1.4), 64: (0.8, 1.0)}
    (line,) = describe_single_settings(decision_on(loads, single_settings=(found,)))
    assert line == (
        "One setting for all loads of code: ngram k=3, 1.50x at 1 (25% less than with the bands), 1.40x at 16, 0.80x "
        "at 64 (20% less than with the bands) (concurrent requests)."
    )


def test_beside_another_temperature_the_setting_says_which_it_is_for() -> None:
    warm = compared(around(1.5), Condition(load=ClosedLoop(concurrency=1), temperature=0.7))
    loads = [adopted(1), adopted(16, 1.4), rejected(64)]
    (line,) = describe_single_settings(decision_on([*loads, warm], single_settings=single(loads)))
    assert line.startswith("One setting for all loads of code at temperature 0: ngram k=3, 1.50x at 1,")


def test_a_gain_that_earned_no_adoption_does_not_make_the_single_setting() -> None:
    doubtful = compared(around(3.0), Condition(load=ClosedLoop(concurrency=16)))
    (found,) = single([adopted(1, 1.2), doubtful, replace(rejected(64), speedup=around(0.5), throughput=around(0.5))])
    assert found.setting == "plain"
    blocked = replace(adopted(16, 3.0), verdict=Verdict.BLOCKED)
    (found,) = single([adopted(1, 3.0), blocked])
    assert found.setting == "plain"


def test_one_band_is_one_setting_already() -> None:
    assert single([adopted(1), adopted(8)]) == ()


def test_a_load_where_nothing_was_told_apart_does_not_interrupt_a_band() -> None:
    doubtful = compared(around(1.1), Condition(load=ClosedLoop(concurrency=4)))
    assert told([adopted(1), doubtful, adopted(16)]) == [(0, math.inf, "ngram k=3")]
    assert [setting for *_, setting in told([adopted(1), rejected(4), adopted(16)])] == [
        "ngram k=3",
        "plain",
        "ngram k=3",
    ]


def test_one_load_is_no_sweep_and_other_loads_are_on_no_axis() -> None:
    assert told([adopted(1)]) == []
    burst = OpenLoop(phases=(*OpenLoop.steady(1.0).phases, *OpenLoop.steady(9.0).phases))
    assert Condition(load=burst).place is None
    assert Condition(load=OpenLoop.steady(2.5)).place == ("rate", 2.5)
    assert (format_load(20.6, "concurrency"), format_load(2.512, "rate")) == ("21", "2.51")


def test_temperatures_and_workloads_have_bands_of_their_own() -> None:
    def hot(comparison: Comparison) -> Comparison:
        return replace(comparison, condition=replace(comparison.condition, temperature=0.7))

    loads = [
        adopted(1),
        adopted(8),
        *map(hot, [adopted(1), rejected(8)]),
        *(replace(c, workload="all") for c in [adopted(1), adopted(8)]),
    ]
    bands = find_bands(loads, (), "plain", margin=0.03)
    places = {(band.workload, band.temperature): band.setting for band in bands}
    assert places == {("code", 0.0): "ngram k=3", ("code", 0.7): "plain", ("all", 0.0): "ngram k=3"}
    assert len(bands) == 4


BANDS = [(0, 4, "ngram k=5"), (4, 32, "ngram k=3"), (32, math.inf, "plain")]


def bands(*stretches: tuple[float, float, str], axis: str = "concurrency") -> list[Band]:
    return [
        Band(workload="code", temperature=0.0, axis=axis, above=above, up_to=up_to, setting=setting)
        for above, up_to, setting in stretches
    ]


def run_on(
    version: dict[str, str], command: str | None = "vllm serve some/model", arms: list[Arm] | None = None
) -> Run:
    setup = Setup(engine="") if command is None else read_setups(command)[0].setup
    given = [replace(each, setup=replace(setup, spec=each.spec)) for each in arms or [arm(3), arm(5)]]
    servers = {each.name: {"command": command, "version": version} for each in given}
    plan = RunPlan(arms=(Arm(name="plain"), *given), workloads=(workload(),), remembering={}, conditions=closed(1, 64))
    return Run(plan=plan, context=from_json(RunContext, {**CONTEXT, "servers": servers}))


def test_bands_that_differ_in_k_alone_become_the_engines_schedule() -> None:
    (proposal,) = propose_schedules(run_on({"version": "0.33.0"}), bands(*BANDS))
    assert json.loads(proposal.spec.to_json()) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        KEY: [[1, 4, 5], [5, 32, 3], [33, 33, 0]],
    }
    assert "did not measure it" in proposal.remarks[0]


def test_what_the_release_makes_of_a_schedule_is_told() -> None:
    (proposal,) = propose_schedules(run_on({"version": "0.26.0"}), bands(*BANDS))
    assert any("PIECEWISE" in remark for remark in proposal.remarks)


@pytest.mark.parametrize(
    ("version", "command"),
    [("0.20.0", "vllm serve some/model"), ("0.33.0", "vllm serve some/model --data-parallel-size 2")],
    ids=["older than the key", "dropped with data parallel"],
)
def test_a_schedule_that_the_server_would_not_honour_is_not_proposed(version: str, command: str) -> None:
    assert propose_schedules(run_on({"version": version}, command), bands(*BANDS)) == ()


def test_the_embedded_engine_honours_it_and_an_unknown_server_gets_a_warning() -> None:
    (ours,) = propose_schedules(run_on({"version": "0.1", "engine": "draftwise"}, None), bands(*BANDS))
    assert len(ours.remarks) == 1
    (unknown,) = propose_schedules(run_on({}, None), bands(*BANDS))
    assert unknown.remarks[1] == "It needs vLLM 0.24.0 or newer."


@pytest.mark.parametrize(
    "stretches",
    [
        bands((0, math.inf, "ngram k=3")),
        bands((0, math.inf, "plain")),
        bands((0, 2, "ngram k=3"), (2, math.inf, "plain"), axis="rate"),
        bands((0, 4, "ngram k=5"), (4, math.inf, "suffix")),
    ],
    ids=["one setting", "plain", "by rate", "two methods"],
)
def test_where_one_server_cannot_be_all_of_them_there_is_no_schedule(stretches: list[Band]) -> None:
    suffix = replace(arm(3), name="suffix").with_spec(SpecConfig(method="suffix", num_speculative_tokens=3))
    assert propose_schedules(run_on({"version": "0.33.0"}, arms=[arm(3), arm(5), suffix]), stretches) == ()


def test_a_verdict_that_is_no_adoption_sets_nothing() -> None:
    loads = [replace(adopted(1), verdict=Verdict.BLOCKED), replace(adopted(8), verdict=Verdict.MIXED)]
    assert told(loads) == [(0, math.inf, "plain")]


@pytest.mark.parametrize("verdict", [Verdict.BLOCKED, Verdict.INCONCLUSIVE])
def test_a_schedule_that_contradicts_what_was_measured_is_not_proposed(verdict: Verdict) -> None:
    """Plain is set at 64 streams only because something withholds the adoption of what was faster there."""
    run = run_on({"version": "0.33.0"})
    blocked = replace(adopted(64), candidate="ngram k=3", verdict=verdict)
    assert propose_schedules(run, bands(*BANDS), [blocked]) == ()
    assert len(propose_schedules(run, bands(*BANDS), [replace(blocked, verdict=Verdict.REJECT)])) == 1
