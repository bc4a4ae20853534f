"""The report: made of the raw files alone, the same every time, and no evidence without its context."""

import json
from pathlib import Path

import pytest
from measuring import CONTEXT, FASTER, PLAIN, make_plan, make_session, make_workload

from draftwise.backends import virtual_time
from draftwise.measure.report import write_report
from draftwise.measure.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    plan = make_plan(workloads=(make_workload("code", 6), make_workload("rewrite", 6)), repeats=2)
    virtual_time.run(make_session(tmp_path / "run", plan, (PLAIN, FASTER)).run())
    return RunDirectory(tmp_path / "run")


def first_line_of_body(page: str) -> str:
    return page.split("<body>")[1].strip().splitlines()[0]


def change_manifest(run: RunDirectory, change) -> None:
    path = run.path / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["context"])
    path.write_text(json.dumps(manifest))


def test_a_rebuilt_report_is_the_same_to_the_byte(run: RunDirectory) -> None:
    write_report(run)
    before = {name: (run.path / name).read_bytes() for name in ("report.html", "summary.json")}
    for name in before:
        (run.path / name).unlink()
    write_report(RunDirectory(run.path))
    assert before == {name: (run.path / name).read_bytes() for name in before}


def test_a_report_is_self_contained_and_complete(run: RunDirectory) -> None:
    decision, _ = write_report(run)
    page = (run.path / "report.html").read_text()
    assert decision.is_evidence
    assert "NOT EVIDENCE" not in page
    assert page.count("<svg") == 4
    for outside in ("<script", "<link", "src=", "url(http", "@import"):
        assert outside not in page
    for shown in (
        decision.sentence,
        "imaginary",
        "bfloat16",
        "fake plain",
        "fake candidate 1",
        "c=1 (c: requests in flight",
    ):
        assert shown in page
    assert make_workload("rewrite", 6).sha256[:16] in page


def test_the_summary_is_plain_json_with_every_number(run: RunDirectory) -> None:
    _, summary = write_report(run)
    text = (run.path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == json.loads(json.dumps(summary))
    row = summary["comparisons"][0]
    assert row["verdict"] == "adopt"
    assert row["speedup"]["low"] < row["speedup"]["value"] < row["speedup"]["high"]
    assert {"p50", "p90", "p95", "p99"} == summary["latencies"][0]["percentiles_ms"]["tpot"].keys()
    assert [each["workload"] for each in summary["text_quality"]] == ["code", "rewrite"]


LOST = {
    "hardware": lambda context: context.pop("hardware"),
    "model": lambda context: context["model"].pop("name"),
    "precision": lambda context: context["model"].pop("dtype"),
    "runtime version": lambda context: context["servers"]["plain"]["version"].clear(),
    "serve command of every arm": lambda context: context["servers"]["candidate 1"].update(command=None),
}


@pytest.mark.parametrize("name", LOST)
def test_without_a_required_part_the_first_line_says_not_evidence_and_why(run: RunDirectory, name: str) -> None:
    change_manifest(run, LOST[name])
    decision, summary = write_report(run)
    line = first_line_of_body((run.path / "report.html").read_text())
    assert f"NOT EVIDENCE: this report does not carry its {name}." in line
    assert decision.missing_context == (name,)
    assert summary["evidence"] is False


def test_prompts_and_model_names_cannot_inject_markup(run: RunDirectory) -> None:
    change_manifest(run, lambda context: context["model"].update(name="<script>alert(1)</script>"))
    write_report(run)
    assert "<script>" not in (run.path / "report.html").read_text()


def test_a_run_without_any_pair_still_reports(tmp_path: Path) -> None:
    directory = RunDirectory.claim(tmp_path / "run")
    directory.begin(make_plan(), CONTEXT)
    decision, _ = write_report(directory)
    assert decision.sentence.startswith("Nothing was measured")


def test_goodput_counts_the_requests_within_the_promise(run: RunDirectory) -> None:
    change_manifest(run, lambda context: context.update(thresholds={"slo_tpot_s": 0.003}))
    _, summary = write_report(run)
    assert {row["arm"]: row["goodput"] for row in summary["latencies"]} == {"plain": 0.0, "candidate 1": 1.0}
