"""What a run says in the terminal: findings once each, in order of load, and a word when nothing happens."""

import io
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console
from tests.support.made_comparisons import adopted, around, compared, decision_on
from tests.support.made_runs import gains, make_run

from draftwise.cli import _session
from draftwise.cli._decision import show_decision, show_outcome
from draftwise.cli._session import ConsoleProgress
from draftwise.core import Comparison, Decision, Finding, Severity
from draftwise.deciding.conclusions import conclude_run


def printed(width: int = 200) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width), text


RUN = make_run({"ngram k=3": gains(1.5)}, repeats=1)


def decided(*comparisons: Comparison, findings: tuple[Finding, ...] = ()) -> Decision:
    return decision_on(comparisons, findings=findings)


def test_loads_stand_in_their_order_also_those_that_were_added_later() -> None:
    console, text = printed()
    show_decision(console, decided(*(adopted(load) for load in (4, 16, 9))), RUN)
    table, _, _ = text.getvalue().partition("\n\n")
    assert [word for word in table.split() if word.startswith("c=")] == ["c=4", "c=9", "c=16"]


@pytest.mark.parametrize(("width", "is_whole"), [(80, False), (200, True)])
def test_columns_are_left_out_rather_than_cut(width: int, is_whole: bool) -> None:
    console, text = printed(width)
    show_decision(console, decided(adopted(4), adopted(64, tpot=around(300.0))), RUN)
    assert ("sion" in text.getvalue()) == is_whole
    assert "…" not in text.getvalue()


@pytest.mark.parametrize("width", [40, 56])
def test_a_terminal_too_narrow_for_any_table_gets_a_paragraph_a_row(width: int) -> None:
    console, text = printed(width)
    show_decision(console, decided(*(adopted(load, candidate="eagle3-qwen k=3") for load in (4, 16))), RUN)
    shown = " ".join(text.getvalue().split())
    assert "workload code load c=16 candidate eagle3-qwen k=3 verdict adopt speed-up 1.50x 95 % 1.47-1.53 TPOT" in shown
    assert max(map(len, text.getvalue().partition("\n\n")[0].splitlines())) <= width
    assert "…" not in text.getvalue()


def test_what_to_type_and_when_to_go_back_stand_below_the_sentence() -> None:
    console, text = printed()
    found = conclude_run(RUN)
    show_decision(console, found.decision, found.run)
    shown = text.getvalue()
    order = [
        shown.index(each)
        for each in ("On 2 cores of imaginary with fake,", "To paste: ngram k=3", "Roll back:", "To go back")
    ]
    assert order == sorted(order)
    assert """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""" in shown
    assert "To go back: serve fake" in shown


@pytest.mark.parametrize("show", [show_decision, show_outcome])
def test_nothing_is_offered_to_paste_where_nobody_told_how_the_server_was_started(show: Callable[..., None]) -> None:
    console, text = printed()
    found = conclude_run(RUN)
    arms = tuple(replace(arm, setup=replace(arm.setup, spec=None)) for arm in found.run.plan.arms)
    plan, context = replace(found.run.plan, arms=arms), replace(found.run.context, servers={})
    show(console, found.decision, replace(found.run, plan=plan, context=context))
    shown = " ".join(text.getvalue().split())
    assert "Nothing to paste for ngram k=3: its server ran already" in shown
    assert "To paste" not in shown
    assert "# unknown" not in shown


def test_a_run_that_is_no_evidence_says_what_to_type() -> None:
    console, text = printed()
    lost = decision_on([compared()], missing_context=("hardware", "serve command of every arm", "workload"))
    show_decision(console, lost, RUN)
    line = text.getvalue().splitlines()[0]
    assert line.startswith("NOT EVIDENCE: the run lacks its hardware, serve command of every arm and workload")
    assert "--context hardware='8x H100' and --context command.ARM='vllm serve ...' for each arm" in line


def test_a_finding_of_many_loads_is_told_once_and_says_where() -> None:
    late = Finding(code="late", severity=Severity.WARNING, message="reads late.", fix="Stop it.")
    console, text = printed()
    run = Finding(code="busy", severity=Severity.ERROR, message="others are here.")
    show_decision(console, decided(*(adopted(2**i, findings=(late,)) for i in range(1, 8)), findings=(run,)), RUN)
    lines = text.getvalue().splitlines()
    assert "error others are here." in lines
    (told,) = [line for line in lines if line.startswith("warning")]
    assert told.startswith("warning code · c=2 · ngram k=3: reads late. Stop it. The same at code · c=4 · ngram k=3, ")
    assert told.endswith("code · c=32 · ngram k=3 and 2 more places.")


def test_a_run_that_waits_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_QUIET_S", 0)
    console, text = printed()
    with ConsoleProgress(console):
        while not text.getvalue():
            time.sleep(0.001)
    assert "no answer has been measured for 0 s: preparing the measurement" in text.getvalue()
