"""What else runs on the machine of a test."""

import pytest


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no turn of a run count as disturbed: what else this machine does is not the point."""
    monkeypatch.setattr("draftwise.decide.disturbance.find_disturbances", lambda run: iter(()))
