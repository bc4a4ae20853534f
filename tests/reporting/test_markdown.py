"""Markdown for a pull request: the verdict first, and never longer than a comment may be."""

from dataclasses import replace

import pytest
from tests.support.made_comparisons import around, compared, decision_on
from tests.support.made_runs import closed, gains, make_run

from draftwise.core import ClosedLoop, Condition, Finding, Severity, UnmeasuredCell, Verdict
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.reporting.markdown import LIMIT, escape, format_table, render_markdown
from draftwise.reporting.sentences import describe_decision


@pytest.fixture(scope="module")
def found() -> Conclusions:
    return conclude_run(make_run({"ngram k=3": gains(1.5)}))


def many(found: Conclusions, workloads: int, candidates: int, loads: int) -> Conclusions:
    """The same run as if it had been a sweep of that size, each cell with a finding of its own."""
    comparisons = tuple(
        compared(
            around(1.2),
            Condition(load=ClosedLoop(concurrency=load)),
            # A name that makes the sentence too long.
            workload=f"workload {w}" + (0 if w else 2000) * " so",
            candidate=f"candidate {c}",
            verdict=Verdict.ADOPT,
            findings=(Finding(code=f"code-{w}-{c}-{load}", severity=Severity.WARNING, message="something " * 30),),
        )
        for w in range(workloads)
        for c in range(candidates)
        for load in range(1, loads + 1)
    )
    unmeasured = UnmeasuredCell(candidate="c", workload="w", condition=Condition(), repetitions=1, planned=3)
    decision = decision_on(comparisons, scope=found.decision.scope, unmeasured=500 * (unmeasured,))
    return replace(found, decision=decision)


def test_it_begins_with_the_verdict_and_folds_the_context(found: Conclusions) -> None:
    text = render_markdown(found)
    assert text.startswith(f"**{escape(describe_decision(found.decision))}**")
    assert "| code · ngram k=3 | adopt |" in text
    context = text.index("<details><summary>What was measured")
    for name in ("imaginary", "bfloat16", "fake-1", "serve fake", found.run.plan.workloads[0].sha256[:16]):
        assert text.rindex(name) > context
    assert text.count("<details>") == text.count("</details>")


def test_without_its_context_the_first_line_says_so(found: Conclusions) -> None:
    lost = replace(found, decision=replace(found.decision, missing_context=("hardware",)))
    assert render_markdown(lost).startswith("**NOT EVIDENCE: the run lacks its hardware, so nobody")


@pytest.mark.parametrize(("workloads", "candidates", "loads"), [(4, 9, 6), (12, 20, 10), (300, 3, 3)])
def test_it_fits_into_a_comment_whatever_was_measured(
    found: Conclusions, workloads: int, candidates: int, loads: int
) -> None:
    text = render_markdown(many(found, workloads, candidates, loads))
    assert 2000 < len(text) <= LIMIT
    assert text.count("<details>") == text.count("</details>")
    assert "| candidate 0 |" in text


def test_a_sweep_is_told_by_load(found: Conclusions) -> None:
    conclusions = conclude_run(make_run({"ngram k=3": gains(1.5)}, conditions=closed(*range(1, 19))))
    assert "| code | c=1 | c=2 |" in render_markdown(conclusions)
    assert "<details><summary>All numbers</summary>" in render_markdown(conclusions)


def test_text_cannot_break_out_of_a_table() -> None:
    (line,) = format_table(("a",), [("x | y\n<b>*z*",)]).splitlines()[2:]
    assert line == "| x \\| y \\<b\\>\\*z\\* |"
