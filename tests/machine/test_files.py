"""Files are there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from draftwise.machine.whole_files import open_lock, replacing, write_whole


def test_what_fails_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_whole(file, "before")

    def write_half() -> None:
        with replacing(file) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("state.json", "before")]


@pytest.mark.parametrize("mode", [0o640, 0o444])
def test_permissions_are_kept_where_that_is_asked_for(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "unit.service"
    write_whole(file, b"before")
    file.chmod(mode)
    with replacing(file, keeps_mode=True) as part:
        part.write_text("after")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("after", mode)


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    held = open_lock(tmp_path / "folder" / "lock")
    with (tmp_path / "folder" / "lock").open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(held)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
