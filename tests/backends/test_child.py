"""The log of a child is read as it grows."""

from pathlib import Path

from draftwise.backends.child import LogTail


def test_lines_come_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    tail = LogTail(file)
    assert tail.read() == []
    file.write_text("one\ntw")
    assert tail.read() == ["one"]
    assert tail.read() == []
    with file.open("a") as log:
        log.write("o\n\nthree\n")
    assert tail.read() == ["two", "three"]
    assert tail.lines == ["one", "two", "three"]


def test_a_progress_bar_is_lines_and_colours_are_gone(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes("\x1b[1;36m(Worker pid=7)\x1b[0;0m Loading:  0%|\rLoading: 50%|█\rLoading: 100%|\n".encode())
    assert LogTail(file).read() == ["(Worker pid=7) Loading:  0%|", "Loading: 50%|█", "Loading: 100%|"]


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"\xff\xfe broken\n")
    assert LogTail(file).read() == ["\ufffd\ufffd broken"]
