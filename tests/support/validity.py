"""Runs for the tests of guards: made with fakes of known behaviour, or bent by hand afterwards."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftwise.core import Answer, ClosedLoop, Condition, Finding, OpenLoop, Run, Severity, TurnRecord
from draftwise.deciding.conclusions import conclude_run
from draftwise.runs import RunDirectory
from tests.support import virtual_time
from tests.support.fake_server import FakeScript
from tests.support.measuring import FASTER, PLAIN, make_plan, make_session, make_workload

ENDING = replace(PLAIN, shortest=0.5)
"""A plain server whose outputs end by themselves."""
QUICKER = replace(FASTER, shortest=0.5)


def closed(concurrency: int, temperature: float = 0.0) -> Condition:
    return Condition(load=ClosedLoop(concurrency=concurrency), temperature=temperature)


def opened(rate_per_s: float) -> Condition:
    return Condition(load=OpenLoop.steady(rate_per_s))


def run_of(path: Path, candidate: FakeScript = QUICKER, *, plain: FakeScript = ENDING, **settings: Any) -> Run:
    """Return what a whole run left behind."""
    virtual_time.run(make_session(path, make_plan(**settings), (plain, candidate)).run())
    return RunDirectory(path).read()


def findings(run: Run) -> dict[str, Finding]:
    """Return everything that is found, by code."""
    decision = conclude_run(run).decision
    found = [*decision.findings, *(each for one in decision.comparisons for each in one.findings)]
    return {each.code: each for each in found}


def codes(run: Run) -> set[str]:
    return set(findings(run))


def graded(run: Run) -> dict[str, Severity]:
    return {code: each.severity for code, each in findings(run).items()}


def bend_answers(run: Run, change: Callable[[Answer], Answer]) -> Run:
    return replace(run, answers=tuple(map(change, run.answers)))


def bend_turns(run: Run, change: Callable[[TurnRecord], TurnRecord]) -> Run:
    return replace(run, turns=tuple(map(change, run.turns)))


__all__ = [
    "ENDING",
    "QUICKER",
    "bend_answers",
    "bend_turns",
    "closed",
    "codes",
    "findings",
    "graded",
    "make_workload",
    "opened",
    "run_of",
]
