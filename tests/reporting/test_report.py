"""The report: made of the raw files alone, the same every time, and no evidence without its context."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from tests.support import virtual_time
from tests.support.made_runs import Truth, arm, closed, gains, make_run, workload
from tests.support.measuring import CONTEXT, FASTER, PLAIN, make_plan, make_session, make_workload
from tests.support.reports import write_report

from draftwise.core import Arm, Condition, Decision, OpenLoop, Phase
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.reporting.page import render_page
from draftwise.reporting.sentences import describe_decision
from draftwise.runs import RunDirectory


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "run"
    plan = make_plan(workloads=(make_workload("code", 6), make_workload("rewrite", 6)), repeats=2)
    virtual_time.run(make_session(path, plan, (PLAIN, FASTER)).run())
    return path


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(measured, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def first_line_of_body(page: str) -> str:
    return page.split("<main>")[1].strip().splitlines()[0]


def change_manifest(run: RunDirectory, change) -> None:
    path = run.path / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["context"])
    path.write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def reported(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Decision]:
    """The run with its report, plots and all, and the decision that it tells."""
    path = tmp_path_factory.mktemp("reported") / "run"
    shutil.copytree(measured, path)
    return path, write_report(RunDirectory(path))[0]


def test_a_rebuilt_report_is_the_same_to_the_byte(run: RunDirectory, reported: tuple[Path, Decision]) -> None:
    write_report(run)
    for name in ("report.html", "summary.json"):
        assert (run.path / name).read_bytes() == (reported[0] / name).read_bytes()


def test_a_report_is_self_contained_and_complete(reported: tuple[Path, Decision]) -> None:
    path, decision = reported
    page = (path / "report.html").read_text()
    assert decision.is_evidence
    assert "NOT EVIDENCE" not in page
    assert page.count("<svg") == 10
    for outside in ("<script", "<link", "src=", "url(http", "@import"):
        assert outside not in page
    for shown in (
        describe_decision(decision),
        "imaginary",
        "bfloat16",
        "fake plain",
        "fake candidate 1",
        "seed 0, streamed",
    ):
        assert shown in page
    assert make_workload("rewrite", 6).sha256[:16] in page


@pytest.mark.usefixtures("unplotted")
def test_the_summary_is_plain_json_with_every_number(run: RunDirectory) -> None:
    summary = to_json(write_report(run)[1])
    text = (run.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == json.loads(json.dumps(summary))
    row = summary["comparisons"][0]
    assert row["verdict"] == "adopt"
    assert row["speedup"]["low"] < row["speedup"]["value"] < row["speedup"]["high"]
    assert {"p50", "p90", "p95", "p99"} == summary["latencies"][0]["percentiles_ms"]["tpot"].keys()
    assert [each["workload"] for each in summary["text_quality"]] == ["code", "rewrite"]
    (step,) = {round(each["tokens_per_step"] / each["decoding"], 9) for each in summary["conversions"][:1]}
    assert step == round(summary["conversions"][0]["step_cost"], 9)


LOST = {
    "hardware": lambda context: context.pop("hardware"),
    "model": lambda context: (context["model"].pop("name"), context["servers"]["plain"].pop("model")),
    "precision": lambda context: context["model"].pop("dtype"),
    "runtime version": lambda context: context["servers"]["plain"]["version"].clear(),
    "serve command of every arm": lambda context: context["servers"]["candidate 1"].update(command=None),
}


@pytest.mark.usefixtures("unplotted")
@pytest.mark.parametrize("name", LOST)
def test_without_a_required_part_the_first_line_says_not_evidence_and_why(run: RunDirectory, name: str) -> None:
    change_manifest(run, LOST[name])
    decision, document = write_report(run)
    summary = to_json(document)
    line = first_line_of_body((run.path / "report.html").read_text())
    assert f"NOT EVIDENCE: the run lacks its {name}, so nobody" in line
    assert decision.missing_context == (name,)
    assert summary["evidence"] is False


@pytest.mark.usefixtures("unplotted")
def test_the_alerts_of_the_decision_lie_beside_the_report(run: RunDirectory) -> None:
    decision, document = write_report(run)
    summary = to_json(document)
    (group,) = yaml.safe_load((run.path / "rollback.rules.yml").read_text())["groups"]
    assert [each["expr"] for each in group["rules"]] == [each["promql"] for each in summary["rollback_rules"]]
    assert len(group["rules"]) == len(decision.rollback) > 0
    assert 'href="rollback.rules.yml"' in (run.path / "report.html").read_text()


@pytest.mark.usefixtures("unplotted")
def test_prompts_and_model_names_cannot_inject_markup(run: RunDirectory) -> None:
    change_manifest(run, lambda context: context["model"].update(name="<script>alert(1)</script>"))
    write_report(run)
    assert "<script>" not in (run.path / "report.html").read_text()


def test_a_run_without_any_pair_still_reports(tmp_path: Path) -> None:
    directory = RunDirectory.claim(tmp_path / "run")
    directory.begin(make_plan(), CONTEXT)
    decision, _ = write_report(directory)
    assert describe_decision(decision).startswith("No workload has been measured")


@pytest.mark.usefixtures("unplotted")
def test_goodput_counts_the_requests_within_the_promise(run: RunDirectory) -> None:
    change_manifest(run, lambda context: context.update(thresholds={"slo_tpot_s": 0.003}))
    summary = to_json(write_report(run)[1])
    assert {row["arm"]: row["goodput"] for row in summary["latencies"]} == {"plain": 0.0, "candidate 1": 1.0}


@pytest.fixture(scope="session")
def swept() -> Conclusions:
    """Two candidates, one of which stops paying as the load grows, on two workloads at two temperatures."""
    slower = Truth(
        step_s=lambda prompt, condition: 0.010 * (1.2 + 0.1 * (condition.concurrency or 1)),
        accepted=lambda prompt: 1,
        k=3,
    )
    run = make_run(
        {"ngram k=3": gains(1.5), "ngram k=5": slower},
        arms=[Arm(name="plain"), arm(3), arm(5)],
        workloads=[workload("code"), workload("prose")],
        conditions=[*closed(1, 4, 16), *closed(1, 4, 16, temperature=0.7)],
    )
    return conclude_run(run)


@pytest.fixture(scope="session")
def page(swept: Conclusions) -> str:
    return render_page(swept)


class TestSweep:
    def test_every_load_is_a_column_and_every_candidate_a_row(self, page: str) -> None:
        grids = page[page.index('<div class="grids">') :]
        assert grids.count('<th scope="col">c=16</th>') == 6
        assert grids[: grids.index("<details>")].count('<span class="verdict"') == 36
        for name in ("code", "code · T=0.7", "all workloads together"):
            assert f"<caption>{name}</caption>" in grids

    def test_the_plots_of_a_sweep_are_there(self, page: str) -> None:
        captions = (
            "Speed-up against load",
            "From the acceptance length",
            "Tokens per step of single requests",
            "What one stream gets",
            "Time per output token: P50 thick",
            "Time to first token: P50 thick",
            "End-to-end latency: P50 thick",
            "Time per output token of every request",
            "Time to first token of every request",
            "End-to-end latency of every request",
            "Every turn's speed".replace("'", "&#39;"),
        )
        assert [caption for caption in captions if f"<figcaption>{caption}" not in page] == []
        assert page.count("<svg") == len(captions) + 2  # the first and the last are drawn for phones, too

    def test_crossovers_are_drawn_where_they_were_found(self, swept: Conclusions, page: str) -> None:
        found = [each.value for each in swept.decision.crossovers if each.value is not None]
        assert found
        svg = page[page.index("<svg") : page.index("</svg>")]
        assert all(f">{value:.0f}<" in svg for value in found)

    def test_long_tables_are_folded_away(self, page: str) -> None:
        assert "<summary>Every comparison (36 rows)</summary>" in page
        assert "<summary>Latencies of every arm, in milliseconds (36 rows)</summary>" in page

    def test_the_page_is_well_formed(self, page: str) -> None:
        opened: list[str] = []

        class Checker(HTMLParser):
            def handle_starttag(self, tag: str, attrs: object) -> None:
                if tag not in ("meta", "br"):
                    opened.append(tag)

            def handle_startendtag(self, tag: str, attrs: object) -> None:
                pass

            def handle_endtag(self, tag: str) -> None:
                assert opened.pop() == tag

        Checker(convert_charrefs=True).feed(page)
        assert opened == []

    def test_conversions_go_from_acceptance_to_speed(self, swept: Conclusions) -> None:
        at_one = next(each for each in swept.conversions if each.candidate == "ngram k=5" and each.load == "c=1")
        assert at_one.acceptance_length == pytest.approx(2, rel=0.05)
        assert at_one.step_cost == pytest.approx(1.3, rel=0.05)
        assert at_one.decoding == pytest.approx(2 / 1.3, rel=0.05)
        assert at_one.realised < at_one.decoding


def test_answers_that_came_in_one_piece_do_not_stop_the_report(tmp_path: Path) -> None:
    at_once = Truth(step_s=lambda prompt, condition: 0.0, accepted=lambda prompt: 100, k=3)
    found = conclude_run(make_run({"ngram k=3": at_once}, conditions=closed(1, 4)))
    assert "What one stream gets" in render_page(found)


def test_rates_make_a_sweep() -> None:
    rates = [Condition(load=OpenLoop.steady(rate)) for rate in (0.5, 2.0, 8.0)]
    swept = render_page(conclude_run(make_run({"ngram k=3": gains(1.5)}, conditions=rates)))
    assert ">requests per second<" in swept
    assert "Speed-up against load" in swept


def test_ramps_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.reporting.svg.to_svg", lambda *_, **__: "")
    ramp = Condition(load=OpenLoop(phases=(Phase(start_per_s=1, end_per_s=4, duration_s=20),)))
    ramped = render_page(conclude_run(make_run({"ngram k=3": gains(1.5)}, conditions=[ramp])))
    assert "Speed-up against load" not in ramped
    assert "Dot: estimate. Bar: 95 % interval" in ramped
