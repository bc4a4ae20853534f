"""What else runs on the machine of a test."""

import pytest


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what else this machine does speak against no run: no turn is disturbed, and noise makes nothing doubtful."""
    monkeypatch.setattr("draftwise.deciding.disturbance.find_disturbances", lambda *_: iter(()))
    monkeypatch.setattr("draftwise.deciding.verdict.UNSETTLING", ())
