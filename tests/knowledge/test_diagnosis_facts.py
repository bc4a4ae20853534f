"""What tells diagnoses apart: every name in a row exists, and every parent is told by less than its children."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from draftwise.cli.explain_command import explain
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.findings import FindingFact, all_findings
from draftwise.knowledge.metrics import CACHE_CONFIG
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.vllm import releases

DIAGNOSED = [fact for fact in all_findings().values() if fact.diagnosis is not None]
READINGS = {
    *("metrics", "replicas", "baseline", "curve", "plain", "probe", "log", "config", "k", "break-even", "crossover"),
    *("uptime", "method", "wakes", "earlier", "requests", "versions", "checksums", "host", "eager twin", "run"),
}
V0_METRIC = "vllm:spec_decode_draft_acceptance_rate"
"""Of an engine that no covered release has; the row that names it says so."""


def metrics_of(fact: FindingFact) -> set[str]:
    assert fact.diagnosis is not None
    text = f"{fact.explains} {fact.diagnosis.told_by} {fact.diagnosis.source}"
    return {name.removesuffix("_total") for name in re.findall(r"\bvllm:\w+(?!\w*\*)", text)} - {"vllm:"}


def test_the_registry_has_the_diagnoses_of_the_design() -> None:
    assert len(DIAGNOSED) >= 80
    assert len({fact.room for fact in DIAGNOSED}) == 7


@pytest.mark.parametrize("fact", DIAGNOSED, ids=lambda fact: fact.code)
def test_a_row_names_only_what_exists(fact: FindingFact) -> None:
    told = fact.diagnosis
    assert told is not None
    assert told.told_by.endswith(".")
    assert told.source
    assert {each for need in told.needs for each in need.split(" or ")} <= READINGS
    assert {*told.consequences, *filter(None, [told.parent])} <= {each.code for each in DIAGNOSED}
    assert set(told.confirmed_by) <= {*all_rules(), *all_findings(), *all_defects()}
    assert fact.code not in {told.parent, *told.consequences}


@pytest.mark.parametrize("fact", DIAGNOSED, ids=lambda fact: fact.code)
def test_metrics_are_those_of_every_covered_release_unless_the_row_says_since_when(fact: FindingFact) -> None:
    assert fact.diagnosis is not None
    for metric in metrics_of(fact) - {V0_METRIC, "vllm:spec_decode_", CACHE_CONFIG}:
        (since, *_), *later = ((release, metric) for release in releases() if metric in release.table("metrics"))
        assert later[-1][0] == releases()[-1], metric
        assert since == releases()[0] or f"from vLLM {since} on" in fact.diagnosis.source, metric
    assert all(V0_METRIC not in release.table("metrics") for release in releases())


def test_parents_form_no_circle_and_need_less_than_their_children() -> None:
    rows = {fact.code: fact.diagnosis for fact in DIAGNOSED}
    for code, told in rows.items():
        assert told is not None
        seen = [code]
        while (parent := rows[seen[-1]]) is not None and parent.parent:
            assert parent.parent not in seen
            seen.append(parent.parent)
        if told.parent:
            above = rows[told.parent]
            assert above is not None
            assert set(told.needs) - set(above.needs), f"{code} takes no reading that {told.parent} goes without"


def test_a_discriminating_code_is_explained_with_cause_observation_needs_action_and_source() -> None:
    for fact in DIAGNOSED:
        shown = " ".join(CliRunner().invoke(explain, [fact.code], env={"COLUMNS": "400"}).output.split())
        assert fact.diagnosis is not None
        for part in (fact.title, fact.explains, fact.fix, fact.diagnosis.told_by, fact.diagnosis.source):
            assert " ".join(part.split()) in shown
        assert f"needs: {', '.join(fact.diagnosis.needs)}" in shown
