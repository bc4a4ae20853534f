"""Where what is made once lies, and that processes make it one after the other."""

import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.machine.folders import cache_folder, one_at_a_time

WRITER = """
import sys, time
from pathlib import Path
from draftwise.machine.folders import one_at_a_time
log = Path(sys.argv[1])
with one_at_a_time("work"):
    with log.open("a") as file:
        file.write("in ")
        file.flush()
        time.sleep(0.05)
        file.write("out\\n")
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"DRAFTWISE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/draftwise"),
        ({"HOME": "/home/me"}, "/home/me/.cache/draftwise"),
    ],
)
def test_where_it_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    for name in ("DRAFTWISE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "cache"))
    log = tmp_path / "log"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(log)]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert log.read_text() == "in out\n" * 4


def test_the_turn_of_one_that_died_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path))
    code = "import os\nfrom draftwise.machine.folders import one_at_a_time\nwith one_at_a_time('work'): os._exit(3)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    with one_at_a_time("work"):
        pass


def test_without_a_place_for_a_lock_all_go_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "file" / "below"))
    with one_at_a_time("work"), one_at_a_time("work"):
        pass
