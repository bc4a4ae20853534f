import json
from collections.abc import Iterator
from typing import Any

import pytest

from draftwise.core import Effect, Finding, Ruling, Setup, Severity, Stage
from draftwise.plan.annotations import SCHEMA, to_sarif
from draftwise.plan.check.check_report import Report

PLAIN = Finding(
    code="some-finding", severity=Severity.WARNING, message="is odd.", where="my files/compose.yaml:12 services.a",
    fix="Mend it.",
)  # fmt: skip
RULING = Ruling(
    code="unknown-flag", severity=Severity.ERROR, message="no release has it.", where="--x", effect=Effect.REJECTED,
    stage=Stage.CLI, exception="SystemExit", source="somewhere",
)  # fmt: skip
NOTE = Finding(code="some-note", severity=Severity.INFO, message="is worth knowing")


def report(*findings: Finding, version: str = "0.19.1") -> Report:
    return Report(version=version, setup=Setup(target="m"), findings=findings, resolved=None)


@pytest.fixture
def run() -> dict[str, Any]:
    log = to_sarif([report(PLAIN, RULING), report(RULING, NOTE, version="0.33.0")], places=["a.sh:3", ""])
    assert (log["version"], log["$schema"]) == ("2.1.0", SCHEMA)
    (run,) = json.loads(json.dumps(log))["runs"]
    return run


def places(run: dict[str, Any]) -> Iterator[tuple[str, int] | None]:
    for result in run["results"]:
        physical = result["locations"][0].get("physicalLocation")
        yield physical and (physical["artifactLocation"]["uri"], physical["region"]["startLine"])


def test_every_result_points_at_its_rule(run):
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["some-finding", "some-note", "unknown-flag"]
    assert len({rule["name"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_required_properties_are_there(run):
    assert run["tool"]["driver"]["name"] == "draftwise"
    for rule in run["tool"]["driver"]["rules"]:
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
        for part in ("shortDescription", "fullDescription", "help"):
            assert rule[part]["text"].endswith(".")
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("error", "warning", "note")
        assert len(result["locations"]) == 1


def test_levels_follow_severity(run):
    assert [result["level"] for result in run["results"]] == ["warning", "error", "error", "note"]


def test_places_become_files_and_lines(run):
    assert list(places(run)) == [("my%20files/compose.yaml", 12), ("a.sh", 3), None, None]
    first, second, third, last = (result["locations"][0] for result in run["results"])
    assert first["logicalLocations"] == [{"fullyQualifiedName": "services.a"}]
    assert second["logicalLocations"] == third["logicalLocations"] == [{"fullyQualifiedName": "--x"}]
    assert "logicalLocations" not in last


def test_what_a_ruling_says_is_kept(run):
    first, second, third, _ = (result["properties"] for result in run["results"])
    assert first == {"engineVersion": "0.19.1", "outcome": "rejected", "fix": "Mend it."}
    assert second == {
        "engineVersion": "0.19.1", "outcome": "rejected", "source": "somewhere", "effect": "rejected",
        "stage": "command line",
        "exception": "SystemExit",
    }  # fmt: skip
    assert third["engineVersion"] == "0.33.0"


def test_the_table_explains_its_rules(run):
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert "unrecognized arguments" in rules["unknown-flag"]["help"]["text"]
    assert rules["some-finding"]["fullDescription"]["text"] == "is odd."


def test_nothing_found_is_a_run_without_results():
    (run,) = to_sarif([report()])["runs"]
    assert run["results"] == []
    assert run["tool"]["driver"]["rules"] == []
