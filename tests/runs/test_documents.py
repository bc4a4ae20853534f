"""Documents that the first release with typed documents found on disk are read, and written back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwise.core import (
    Answer,
    Baseline,
    Calibration,
    Condition,
    Divergence,
    Estimate,
    Expectation,
    Forecast,
    Omission,
    Profile,
    Settled,
    TurnRecord,
    UnreadableSource,
)
from draftwise.core.documents import from_json, to_json
from draftwise.core.finding import SITE
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.summary import summarise
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_baseline, read_file, read_profile, write_document
from draftwise.runs.manifest import Manifest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/core/documents"
DOCUMENTS: list[tuple[type[Any], str]] = [
    (Calibration, "calibration.json"),
    (Profile, "profile.json"),
    (Forecast, "forecast.json"),
    (Baseline, "baseline.json"),
    (Baseline, "baseline_of_nothing.json"),
]
ROWS: list[tuple[type[Any], str]] = [
    (Answer, "requests"),
    (TurnRecord, "turns"),
    (Divergence, "divergences"),
    (Condition, "conditions"),
    (Settled, "settled"),
    (Omission, "omissions"),
    (Expectation, "expected"),
    (Estimate, "estimates"),
]


def holds(written: Any, row: Any) -> bool:
    """Return whether a document has all that an earlier one had; it may have keys that are newer."""
    if isinstance(row, dict):
        return row.keys() <= written.keys() and all(holds(written[key], each) for key, each in row.items())
    if isinstance(row, list):
        return len(written) == len(row) and all(map(holds, written, row))
    return bool(written == row)


def with_pages(row: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose findings have all keys, as they have today."""
    found = [{"source": "", "url": f"{SITE}findings/{each['code']}/", **each} for each in row.get("findings", ())]
    return row | ({"findings": found} if "findings" in row else {})


@pytest.mark.parametrize(("kind", "name"), DOCUMENTS, ids=lambda each: str(each))
def test_a_document_is_written_back_as_it_was(kind: type[Any], name: str, tmp_path: Path) -> None:
    value = read_file(kind, FOLDER / name)
    write_document(tmp_path / name, value)
    row = json.loads((FOLDER / name).read_text())
    if kind is Baseline and row["seen"]:  # keys that are newer
        row["seen"] |= {"model": "", "revision": "", "slower_than": [], "ends_idle": False}
        row["seen"]["load"] |= {"reported_length": None, "lengths": {}}
        row["seen"]["sums"] |= dict.fromkeys(("aborted", "failed", "capped", "corrupted", "refused", "broken"))
    assert json.loads((tmp_path / name).read_text()) == with_pages(row)
    assert read_file(kind, tmp_path / name) == value


@pytest.mark.parametrize(("kind", "name"), ROWS, ids=lambda each: str(each))
def test_a_row_of_a_run_is_written_back_as_it_was(kind: type[Any], name: str) -> None:
    rows = [json.loads(line) for line in (FOLDER / f"run/{name}.jsonl").read_text().splitlines()]
    assert rows
    written = [json.loads(json.dumps(to_json(from_json(kind, row)))) for row in rows]
    assert all(map(holds, written, rows))


def test_a_manifest_is_written_back_as_it_was() -> None:
    row = json.loads((FOLDER / "run/manifest.json").read_text())
    assert holds(json.loads(json.dumps(to_json(from_json(Manifest, row)))), row)
    run = RunDirectory(FOLDER / "run").read()
    assert holds(json.loads(json.dumps(to_json(Manifest.of(run.plan, run.context)))), row)


@pytest.mark.parametrize("folder", ["forecast_sweep", "forecast_sweep_2"])
def test_documents_of_measurements_are_read(folder: str) -> None:
    results = ROOT / "benchmarks/h200/results" / folder
    for kind, name in DOCUMENTS[:2]:
        found = read_file(kind, results / name)
        assert from_json(kind, json.loads(json.dumps(to_json(found)))) == found


def test_a_file_that_is_not_there_or_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(UnreadableSource, match=r"profile\.json cannot be read: it is not JSON"):
        read_profile(tmp_path)
    with pytest.raises(UnreadableSource, match=r"b\.json cannot be read: No such file"):
        read_baseline(tmp_path / "b.json")


def test_a_summary_is_what_it_was() -> None:
    row = json.loads((FOLDER / "run/summary.json").read_text())
    made = json.loads(json.dumps(to_json(summarise(conclude_run(RunDirectory(FOLDER / "run").read())))))
    for findings in (made["findings"], *(each["findings"] for each in made["comparisons"])):
        for finding in findings:
            assert finding.pop("where") is not None
            assert finding.pop("source") is not None
            assert finding.pop("url").startswith(SITE)
    assert [each.pop("log_itself") for each in made["comparisons"]] == [None] * 3  # a newer key
    assert made == row
