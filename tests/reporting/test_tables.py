"""What HTML and Markdown show alike: verdicts by load, each finding once, what the numbers depend on."""

from tests.support.made_comparisons import ALONE, LOADED, adopted, compared, decision_on, rejected
from tests.support.made_runs import closed, gains, make_run

from draftwise.core import Band, Finding, Severity
from draftwise.core.comparison import ALL
from draftwise.reporting.tables import group_findings, list_band_rows, list_context_rows, make_grids, sort_comparisons


def test_grids_have_the_lightest_load_first_and_gaps_where_nothing_was_measured() -> None:
    (grid,) = make_grids([rejected(16), adopted(2), adopted(4), adopted(2, candidate="other")])
    assert grid.loads == ("c=2", "c=4", "c=16")
    rows = {name: [None if each is None else str(each.verdict) for each in row] for name, row in grid.rows}
    assert rows == {"ngram k=3": ["adopt", "adopt", "reject"], "other": ["adopt", None, None]}


def test_all_workloads_together_stand_last() -> None:
    comparisons = [compared(workload=ALL), compared(condition=LOADED, workload="b"), compared(workload="b")]
    assert [(each.workload, each.condition) for each in sort_comparisons(comparisons)] == [
        ("b", ALONE),
        ("b", LOADED),
        (ALL, ALONE),
    ]


def test_a_finding_stands_once_with_all_its_places_and_the_gravest_first() -> None:
    light = Finding(code="a", severity=Severity.WARNING, message="slow")
    grave = Finding(code="b", severity=Severity.ERROR, message="off")
    decision = decision_on(
        [compared(findings=(light,)), compared(condition=LOADED, findings=(light,))], findings=(grave,)
    )
    first, second = group_findings(decision)
    assert (first.finding.code, first.places) == ("b", (("the run", "off"),))
    assert [where for where, _ in second.places] == ["code · c=1 · ngram k=3", "code · c=16 · ngram k=3"]


def test_bands_of_a_sweep_are_one_row() -> None:
    def band(above: float, up_to: float, setting: str) -> Band:
        return Band(workload="code", temperature=0.7, axis="concurrency", above=above, up_to=up_to, setting=setting)

    assert list_band_rows([band(0, 7, "k=5"), band(7, 30, "k=2"), band(30, float("inf"), "plain")]) == [
        ("code · T=0.7", "up to 7: k=5; 7 to 30: k=2; above 30: plain (concurrent requests)")
    ]


def test_the_context_says_what_is_not_known() -> None:
    run = make_run({"ngram k=3": gains(1.5)}, conditions=closed(1, 8), context={"model": {"parameters": 8_030_000_000}})
    rows = dict(list_context_rows(run))
    assert rows["Hardware"] == "not known"
    assert rows["Model"] == "parameters: 8030.0 million"
    assert rows["Loads"] == "c=1, c=8"
    assert "mean 100 prompt and 50 output tokens" in rows["Workload code"]
