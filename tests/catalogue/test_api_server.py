"""A real API server takes what `deploy` writes, whole, and finds the planted faults; skipped where it is not built."""

import json
import os
from pathlib import Path

import pytest
from catalogue.api_server import check_all, find_faults

TOOLS = Path(os.environ.get("DRAFTWISE_TOOLS") or Path.home() / ".cache/draftwise/tools")
RESULTS = Path(__file__).parents[2] / "ci/platform/api_server.json"


def test_a_real_api_server_takes_all_files_and_finds_all_faults() -> None:
    for name in ("crd-server/apiextensions-apiserver", "crd-server/etcd", "crds"):
        if not (TOOLS / name).exists():
            pytest.skip(f"{TOOLS / name} is not there: `make apiserver` builds it")
    found = check_all(TOOLS / "crd-server", TOOLS / "crds")
    assert find_faults(found) == []
    assert len(found["faults"]) == 8
    assert sum(row["taken_by_the_server"] for row in found["faults"]) == 4
    assert {"InferenceService", "ServingRuntime", "LLMInferenceService", "AnalysisTemplate", "PrometheusRule"} <= set(
        found["kinds"]
    )


def test_the_committed_results_are_without_a_fault() -> None:
    assert find_faults(json.loads(RESULTS.read_text())) == []


def test_what_is_passed_over_is_a_fault() -> None:
    found = json.loads(RESULTS.read_text())
    found["faults"][0]["found_by_what_came_back"] = []
    found["refused_or_changed"] = [{"file": "spec.yaml", "kind": "InferenceService", "found": ["refused: no"]}]
    assert find_faults(found) == ["spec.yaml: ['refused: no']", "a field is misspelled: not found by the server"]
