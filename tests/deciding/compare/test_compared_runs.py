"""Is the answer still true? Runs that differ in one known way, and results of other tools."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_runs import CONTEXT, Truth, arm, closed, gains, make_run, workload

from draftwise.core import Arm, Estimate, Interval, InvalidSetup, Run, Verdict
from draftwise.deciding.compare import PairSide, RunPair, compare_sides, read_side
from draftwise.deciding.compare.run_pair import VerdictOutcome, divide_ratios, judge_verdicts, make_results
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.compared_runs import describe_comparison, list_notes, to_markdown
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.verbs.compare import CompareResult

SAMPLES = Path(__file__).parents[1] / "interchange" / "samples"


def context(version: str = "1", **others: Any) -> dict[str, Any]:
    servers = {name: {**each, "version": {"version": version}} for name, each in CONTEXT["servers"].items()}
    return {**CONTEXT, "servers": servers, **others}


def side(run: Run, source: str = "run") -> PairSide:
    found = conclude_run(run)
    return PairSide(results=make_results(found, source), decision=found.decision, is_finished=not run.seconds_short)


def measured(gain: float = 1.5, plain: Truth | None = None, seed: int = 0, **others: Any) -> PairSide:
    truths = {"ngram k=3": gains(gain), **({"plain": plain} if plain else {})}
    return side(make_run(truths, seed=seed, **{"context": context(), **others}))


def compare(before: PairSide, after: PairSide, asked: tuple[str, ...] = ("version",)) -> RunPair:
    return compare_sides(before, after, asked)


class TestStillTrue:
    def test_an_upgrade_that_changes_nothing_leaves_the_answer_true(self) -> None:
        compared = compare(measured(), measured(seed=1, context=context("2")))
        assert compared.is_like_for_like
        assert compared.is_still_true is True
        assert {each.name for each in compared.differences} == {"version.plain.version", "version.ngram k=3.version"}
        (verdict,) = compared.verdicts
        assert verdict.kept is VerdictOutcome.STILL
        assert verdict.change.low < 1 < verdict.change.high

    def test_a_gain_that_shrank_but_stays_is_told(self) -> None:
        compared = compare(measured(2.0), measured(1.5, seed=1, context=context("2")))
        assert compared.is_still_true is True
        assert "the gain itself moved in 1 of them, most with ngram k=3 on code at c=1: 0.7" in describe_comparison(
            compared
        )

    def test_an_upgrade_that_takes_the_gain_is_found_with_its_size(self) -> None:
        compared = compare(measured(1.5), measured(0.8, seed=1, context=context("2")))
        assert compared.is_still_true is False
        (verdict,) = compared.verdicts
        assert verdict.kept is VerdictOutcome.CHANGED
        assert verdict.change.high < 0.7
        assert describe_comparison(compared).startswith("The answer is no longer true")

    def test_what_neither_run_could_tell_is_no_answer(self) -> None:
        compared = compare(measured(1.06), measured(1.06, seed=1))
        assert [each.kept for each in compared.verdicts] == [VerdictOutcome.NEITHER]
        assert compared.is_still_true is None
        assert describe_comparison(compared).startswith("Cannot tell whether the answer is still true")

    def test_a_faster_server_shows_arm_by_arm(self) -> None:
        faster = Truth(step_s=lambda prompt, condition: 0.008)
        compared = compare(measured(), measured(seed=1, plain=faster, context=context("2")))
        cells = {cell.arm: {change.reading: change for change in cell.changes} for cell in compared.cells}
        tpot = cells["plain"]["tpot"]
        assert tpot.how == "paired"
        assert tpot.ratio is not None
        assert tpot.ratio.low < 0.8 < tpot.ratio.high
        assert tpot.ratio.high - tpot.ratio.low < 0.05
        unchanged = cells["ngram k=3"]["tpot"].ratio
        assert unchanged is not None
        assert unchanged.low < 1 < unchanged.high


class TestLikeForLike:
    @pytest.mark.parametrize(
        ("other", "kind"),
        [
            ({"hardware": {"cpu": "another"}}, "hardware"),
            ({"model": {"name": "fake", "dtype": "float16"}}, "model"),
        ],
    )
    def test_what_was_not_asked_about_refuses_the_comparison(self, other: dict[str, Any], kind: str) -> None:
        compared = compare(measured(), measured(context=context("2", **other)))
        assert not compared.is_like_for_like
        assert {each.kind for each in compared.unasked} == {kind}
        assert compared.is_still_true is None
        assert describe_comparison(compared).startswith(f"NOT LIKE FOR LIKE: the two also differ in {kind}")
        assert describe_comparison(compared).endswith(f"pass --changed version --changed {kind}.")

    @pytest.mark.parametrize(("one", "other"), [(12, 30), (30, 12), (30, 30)])
    def test_how_many_prompts_the_time_had_room_for_is_no_difference(self, one: int, other: int) -> None:
        sides = [measured(workloads=[workload(num_prompts=count)], seed=count) for count in (one, other)]
        compared = compare(*sides)
        assert compared.is_like_for_like
        assert compared.is_still_true is True
        assert {change.how for cell in compared.cells for change in cell.changes} == {"paired"}
        assert any("12 prompts that both sides used" in note for note in list_notes(compared)) is (one != other)

    @pytest.mark.parametrize("shared", [0, 5])
    def test_other_prompts_are_one(self, shared: int) -> None:
        other = replace(
            workload(num_prompts=30),
            prompts=tuple(
                each if number < shared else replace(each, text=f"else {number}")
                for number, each in enumerate(workload(num_prompts=30).prompts)
            ),
        )
        compared = compare(measured(workloads=[workload(num_prompts=30)]), measured(workloads=[other], seed=1))
        assert {each.kind for each in compared.unasked} == {"workload"}

    def test_what_was_asked_about_does_not(self) -> None:
        other = measured(context=context(hardware={"cpu": "another"}))
        assert compare(measured(), other, ("hardware",)).is_like_for_like

    def test_where_a_server_runs_does_not_matter(self) -> None:
        def at(port: int) -> PairSide:
            servers = {name: {"command": f"serve m --port {port} -O3", "version": {}} for name in CONTEXT["servers"]}
            return measured(context={**CONTEXT, "servers": servers})

        assert compare(at(8001), at(9999)).differences == ()

    def test_other_flags_do(self) -> None:
        servers = {name: {"command": "serve fake -O0", "version": {"version": "1"}} for name in CONTEXT["servers"]}
        compared = compare(measured(), measured(context={**CONTEXT, "servers": servers}))
        assert {each.kind for each in compared.unasked} == {"command"}


def test_loads_that_only_one_has_are_named() -> None:
    compared = compare(measured(conditions=closed(1, 4)), measured(conditions=closed(1)))
    assert len(compared.cells) == 2
    assert sorted(line.split(":")[0] for line in compared.left_out) == ["code · c=4 · ngram k=3", "code · c=4 · plain"]


def test_a_candidate_that_only_one_run_has_differs_in_nothing() -> None:
    fast = replace(arm(5), name="fast")
    arms = [Arm(name="plain"), arm(3)]
    servers = dict.fromkeys(("plain", "ngram k=3", "fast"), CONTEXT["servers"]["plain"])
    both, one, other = (
        side(make_run({each.name: gains(1.5) for each in chosen[1:]}, arms=chosen, context={**CONTEXT, "servers": {
            each.name: servers[each.name] for each in chosen}}))
        for chosen in ([*arms, fast], arms, [arms[0], fast])
    )  # fmt: skip
    grown, shrunk = compare(one, both), compare(both, one)
    assert grown.is_still_true is True
    assert all(any("fast: only in" in each for each in pair.left_out) for pair in (grown, shrunk))
    assert (shrunk.is_still_true, CompareResult.of(shrunk).exit_code) == (None, 1)
    assert "still true: fast was not measured again. So far: 1 still true." in describe_comparison(shrunk)
    renamed = compare(one, other)
    assert (renamed.is_still_true, CompareResult.of(renamed).exit_code) == (None, 1)
    assert "under one name (ngram k=3 before, fast after)" in describe_comparison(renamed)


def test_pooled_rows_of_other_workloads_are_not_compared() -> None:
    sides = [measured(workloads=(workload("shared"), workload(name))) for name in ("one", "other")]
    assert [each.workload for each in compare(*sides).verdicts] == ["shared"]
    assert [each.workload for each in compare(sides[0], sides[0]).verdicts] == ["shared", "one", "all"]


@pytest.mark.parametrize("stopped", [0, 1])
def test_of_a_run_that_was_stopped_nothing_is_still_true(stopped: int) -> None:
    run = make_run({"ngram k=3": gains(1.5)}, context=context())
    cut = replace(run, estimates=(Estimate(at_s=9.0, done=4, ahead=90, left_s=60.0),))
    sides = [side(cut if place == stopped else run, f"run{place}") for place in (0, 1)]
    compared = compare(*sides)
    assert compared.is_still_true is None
    assert any(f"run{stopped}: stopped before its end" in each for each in list_notes(compared))
    assert f"still true: run{stopped} stopped early. So far: 1 still true." in describe_comparison(compared)
    assert CompareResult.of(compared).exit_code == 1
    assert any("stopped 60 s before its end" in each for each in describe_unmeasured(sides[stopped].decision))
    whole = replace(cut, estimates=(*cut.estimates, Estimate(at_s=70.0, done=94, ahead=0, left_s=0.0)))
    assert compare(side(whole), side(run)).is_still_true is True


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(InvalidSetup, match="has no workload, load and arm in common"):
        compare(measured(), measured(conditions=closed(4)))


class TestOtherTools:
    def test_two_make_results_one_tool_are_paired_by_their_prompts(self, tmp_path: Path) -> None:
        document = json.loads((SAMPLES / "vllm-bench-0.32.json").read_text())
        slower = document | {"itls": [[1.1 * gap for gap in gaps] for gaps in document["itls"]], "latencies": None}
        (tmp_path / "after.json").write_text(json.dumps(slower))
        compared = compare(read_side(SAMPLES / "vllm-bench-0.32.json"), read_side(tmp_path / "after.json"))
        assert compared.is_like_for_like
        changes = {change.reading: change for change in compared.cells[0].changes}
        assert changes["itl"].how == "paired"
        assert changes["tpot"].ratio is not None
        assert changes["tpot"].ratio.value == pytest.approx(1.1)

    def test_aggregates_give_ratios_without_intervals(self, tmp_path: Path) -> None:
        document = json.loads((SAMPLES / "vllm-bench-0.32.json").read_text())
        plain = {name: value for name, value in document.items() if not isinstance(value, list)}
        (tmp_path / "a.json").write_text(json.dumps(plain))
        (tmp_path / "b.json").write_text(json.dumps(plain | {"mean_tpot_ms": 2 * plain["mean_tpot_ms"]}))
        compared = compare(read_side(tmp_path / "a.json"), read_side(tmp_path / "b.json"))
        changes = {change.reading: change for change in compared.cells[0].changes}
        assert changes["tpot"].how == "means"
        assert changes["tpot"].ratio is not None
        assert (changes["tpot"].ratio.value, changes["tpot"].ratio.low) == (pytest.approx(2), 0)
        assert "no interval" in to_markdown(compared)

    def test_aggregates_of_different_definitions_are_not_divided(self, tmp_path: Path) -> None:
        document = json.loads((SAMPLES / "vllm-bench-0.32.json").read_text())
        plain = {name: value for name, value in document.items() if not isinstance(value, list)}
        (tmp_path / "a.json").write_text(json.dumps(plain))
        summary = SAMPLES / "aiperf-0.13.0" / "profile_export_aiperf.json"
        compared = compare(read_side(tmp_path / "a.json"), read_side(summary), ("tool", "parameters", "workload"))
        changes = {change.reading: change for change in compared.cells[0].changes}
        assert changes["tpot"].ratio is None
        assert changes["tpot"].how.startswith("not comparable")

    def test_requests_that_failed_are_told(self, tmp_path: Path) -> None:
        document = json.loads((SAMPLES / "vllm-bench-0.32.json").read_text())
        failed = {"completed": 3, "failed": 1, "output_lens": [0, *document["output_lens"][1:]]}
        (tmp_path / "after.json").write_text(json.dumps(document | failed))
        compared = compare(read_side(SAMPLES / "vllm-bench-0.32.json"), read_side(tmp_path / "after.json"))
        assert "prompts · c=2 · server: 1 of 4 requests failed after" in list_notes(compared)

    def test_different_tools_are_a_difference(self) -> None:
        guidellm = read_side(SAMPLES / "guidellm-0.3.1.json")
        compared = compare(read_side(SAMPLES / "vllm-bench-0.32.json"), guidellm)
        assert "tool" in {each.kind for each in compared.unasked}
        assert {change.how for change in compared.cells[0].changes} == {"unpaired"}


def test_json_is_plain_and_complete() -> None:
    compared = compare(measured(), measured(seed=1, context=context("2")))
    document = json.loads(json.dumps(CompareResult.of(compared).to_dict()), parse_constant=pytest.fail)
    assert document["still_true"] is True
    assert document["verdicts"][0]["kept"] == "still true"
    assert document["cells"][0]["changes"][0]["reading"] == "tokens/s"


def test_markdown_lists_what_differs_before_any_ratio() -> None:
    text = to_markdown(compare(measured(), measured(seed=1, context=context("2"))))
    assert text.startswith("**The answer is still true")
    assert text.index("version.plain.version") < text.index("after / before")


def test_the_interval_of_a_ratio_of_ratios_holds_its_level() -> None:
    """With limits at equal log distance the distances add in quadrature."""
    one = Interval(value=2.0, low=2.0 / 1.1, high=2.0 * 1.1)
    ratio = divide_ratios(one, replace(one, value=3.0, low=3.0 / 1.1, high=3.0 * 1.1))
    assert ratio.value == pytest.approx(1.5)
    assert ratio.high / ratio.value == pytest.approx(1.1 ** (2**0.5))
    assert ratio.value / ratio.low == pytest.approx(1.1 ** (2**0.5))
    unknown = divide_ratios(one, Interval(value=1.0, low=0.0, high=float("inf")))
    assert (unknown.low, unknown.high) == (0.0, float("inf"))


@pytest.mark.parametrize("nothing", [Verdict.INCONCLUSIVE, Verdict.BLOCKED])
@pytest.mark.parametrize("verdict", [each for each in Verdict if each not in (Verdict.INCONCLUSIVE, Verdict.BLOCKED)])
def test_a_verdict_in_doubt_makes_no_answer_untrue(nothing: Verdict, verdict: Verdict) -> None:
    assert judge_verdicts(verdict, nothing) is VerdictOutcome.OPEN
    assert judge_verdicts(nothing, verdict) is VerdictOutcome.NEWLY
    assert judge_verdicts(nothing, Verdict.BLOCKED) is VerdictOutcome.NEITHER
    assert judge_verdicts(verdict, verdict) is VerdictOutcome.STILL
