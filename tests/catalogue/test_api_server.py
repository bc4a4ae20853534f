"""A real API server takes what `deploy` writes, whole, and finds the planted faults; skipped where it is not built."""

import json
import os
from pathlib import Path

import pytest
from catalogue.api_server import check_all, find_faults, list_documents, list_fields, locate, name_kind
from catalogue.schemas import SOURCES

TOOLS = Path(os.environ.get("DRAFTWISE_TOOLS") or Path.home() / ".cache/draftwise/tools")
RESULTS = Path(__file__).parents[2] / "catalogue/platform/api_server.json"


def test_a_real_api_server_takes_all_files_and_finds_all_faults() -> None:
    programs = [TOOLS / "crd-server" / name for name in ("apiextensions-apiserver", "etcd")]
    for file in [*programs, *(locate(source, TOOLS / "crds") for source in SOURCES)]:
        if not file.is_file():
            pytest.skip(f"{file} is not there: `make apiserver` builds or fetches it")
    found = check_all(TOOLS / "crd-server", TOOLS / "crds")
    assert find_faults(found) == []
    assert len(found["faults"]) == 8
    assert sum(row["taken_by_the_server"] for row in found["faults"]) == 4
    assert {"InferenceService", "ServingRuntime", "LLMInferenceService", "AnalysisTemplate", "PrometheusRule"} <= set(
        found["kinds"]
    )


def test_the_committed_results_are_without_a_fault() -> None:
    assert find_faults(json.loads(RESULTS.read_text())) == []


@pytest.mark.parametrize("release", ["0.15", "0.20"])
def test_no_field_is_written_that_a_real_server_was_not_asked_about(release: str) -> None:
    """What it said is committed, so that this holds where no server is built."""
    asked: dict[str, list[str]] = json.loads(RESULTS.read_text())["fields"]
    new = {
        f"{name_kind(document)} {field}"
        for _, document in list_documents([release])
        for field in set(list_fields(document)) - set(asked.get(name_kind(document), ()))
    }
    assert new == set(), "`make apiserver` asks about what is new"


def test_fields_are_known_by_their_path_and_type() -> None:
    document = {"spec": {"a": [{"b": 1}, {"b": "1"}], "labels": {"x.y/z": "w"}}}
    assert set(list_fields(document)) == {"spec.a[].b: int", "spec.a[].b: str", "spec.labels.*: str"}


def test_what_is_passed_over_is_a_fault() -> None:
    found = json.loads(RESULTS.read_text())
    found["faults"][0]["found_by_what_came_back"] = []
    found["refused_or_changed"] = [{"file": "spec.yaml", "kind": "InferenceService", "found": ["refused: no"]}]
    assert find_faults(found) == ["spec.yaml: ['refused: no']", "a field is misspelled: not found by the server"]
