"""What real_faults.py draws, and what it makes of its rows; the runs themselves take minutes."""

from __future__ import annotations

from typing import Any

import pytest
from real_faults import LONGEST, PAIRS, Run, find_truths, judge, keep_busy, summarise


def row(verdict: str, *ratio: float, busy: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"candidate": "suffix", "workload": "code", "verdict": verdict, "reason": ""}
    if ratio:
        found["ratio"] = list(ratio)
    about = {"cpu": "imaginary", "date": "2026-11-22", "draftwise": "0", "seconds": 60.0, "minutes": 1.0}
    return {**found, **about, "busy": [[0.0, 5.0]] if busy else []}


def test_runs_go_through_all_pairs_and_only_disturbed_ones_have_company() -> None:
    drawn = {quiet: [Run.draw(number, quiet=quiet) for number in range(40)] for quiet in (True, False)}
    for runs in drawn.values():
        assert {(each.candidate, each.workload) for each in runs[: len(PAIRS)]} == set(PAIRS)
    assert not any(each.busy for each in drawn[True])
    for each in drawn[False]:
        ends = [time for spell in each.busy for time in spell]
        assert ends
        assert ends == sorted(ends)
        assert each.busy[-1][0] < LONGEST * 60 * each.minutes
    assert Run.draw(7, quiet=False) == drawn[False][7]


@pytest.mark.parametrize(
    ("verdict", "truth", "judged"),
    [
        ("adopt", (0.97, 1.0, 1.02), "false"),
        ("adopt", (0.98, 1.02, 1.06), "not known"),
        ("adopt", (1.05, 1.1, 1.2), "right"),
        ("reject", (0.98, 1.0, 1.02), "false"),
        ("reject", (0.9, 0.96, 1.01), "not known"),
        ("reject", (0.8, 0.85, 0.9), "right"),
        ("inconclusive", (0.8, 0.85, 0.9), "none"),
    ],
)
def test_a_verdict_is_judged_by_what_quiet_runs_say(verdict: str, truth: tuple[float, ...], judged: str) -> None:
    assert judge(row(verdict), find_truths([row("inconclusive", *truth, busy=False)])) == judged


def test_what_no_quiet_run_has_measured_is_not_known() -> None:
    found = summarise([row("adopt", 1.1, 1.2, 1.3), row("no result")])
    assert (found["disturbed_runs"], found["false"], found["truth_not_known"]) == (2, 0, 1)
    assert found["verdicts"] == {"adopt": 1, "no result": 1}


def test_company_that_is_not_due_yet_ends_with_the_run() -> None:
    with keep_busy(((600.0, 700.0),)):
        pass
