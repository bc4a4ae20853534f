"""Reports of runs for tests of what is beside their plots."""

import pytest


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out: drawing them takes a second."""
    monkeypatch.setattr("draftwise.report.page.draw_plots", lambda found: {})
