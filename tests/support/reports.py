"""Reports of runs for tests of what is beside their plots."""

import pytest

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
