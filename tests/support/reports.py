"""Reports of runs, written whole or without plots."""

import pytest

from draftwise.core import Decision
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.page import write_conclusions
from draftwise.reporting.summary import Summary
from draftwise.runs import RunDirectory

UNPLOTTED = """
from draftwise.cli import main
from draftwise.reporting import page

page._draw = lambda found: {}
main()
"""
"""The command in a process of its own, its reports without plots."""


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out: drawing them takes a second."""
    monkeypatch.setattr("draftwise.reporting.page._draw", lambda found: {})


def write_report(directory: RunDirectory) -> tuple[Decision, Summary]:
    """Write page, summary and alerts of a run; return its decision and the summary."""
    return write_conclusions(directory, conclude_run(directory.read()))
