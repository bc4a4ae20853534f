"""Where what a user adds is kept."""

from pathlib import Path

import pytest

from draftwise.machine.folders import data_folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DRAFTWISE_DATA_DIR": "/a", "XDG_DATA_HOME": "/b"}, "/a"),
        ({"XDG_DATA_HOME": "/b"}, "/b/draftwise"),
        ({"HOME": "/home/me"}, "/home/me/.local/share/draftwise"),
    ],
)
def test_where_it_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    for name in ("DRAFTWISE_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert data_folder() == Path(expected)
