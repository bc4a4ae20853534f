from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogue import __main__, build
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import NotFound, Tree

Wheel = Callable[..., Path]


def _words(tree: Tree) -> Facts:
    module = tree.get("vllm/words.py")
    return {line: (len(line), module.source(line)) for line in module.text.split()}


def _written(folder: Path, out: Path) -> dict[str, bytes]:
    build.write(out, build.build(folder, {"words": _words}), build.find_wheels(folder))
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_the_same_wheels_give_the_same_bytes(wheel: Wheel, tmp_path: Path) -> None:
    for version, text in (("0.9.2", "b a"), ("0.10.0", "a c"), ("0.10.1", "c a")):
        folder = wheel(version, {"vllm/words.py": text})
    first = _written(folder, tmp_path / "one")
    assert first == _written(folder, tmp_path / "one") == _written(folder, tmp_path / "two")
    assert [row["version"] for row in json.loads(first["releases.json"])] == ["0.9.2", "0.10.0", "0.10.1"]


def test_a_release_that_changes_nothing_changes_no_row(wheel: Wheel, tmp_path: Path) -> None:
    folder = wheel("1.0", {"vllm/words.py": "a b"})
    before = _written(folder, tmp_path / "out")
    wheel("1.1", {"vllm/words.py": "b a"})
    after = _written(folder, tmp_path / "out")
    assert before["words.json"] == after["words.json"]
    assert before["releases.json"] != after["releases.json"]


def test_a_file_of_a_topic_that_is_gone_is_removed(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.json").write_text("[]")
    assert set(_written(wheel("1.0", {"vllm/words.py": "a"}), tmp_path / "out")) == {"words.json", "releases.json"}


def test_what_cannot_be_read_stops_the_build(wheel: Wheel) -> None:
    wheel("1.0", {"vllm/words.py": "a"})
    folder = wheel("1.1", {"vllm/moved.py": "a"})
    with pytest.raises(NotFound, match=r"vLLM 1\.1: none of vllm/words\.py"):
        build.build(folder, {"words": _words})


def test_differences_name_what_the_newest_release_did(wheel: Wheel) -> None:
    wheel("1.0", {"vllm/words.py": "stays goes"})
    folder = wheel("1.1", {"vllm/words.py": "stays comes"})
    rows = build.build(folder, {"words": _words})
    assert list(build.differences(rows, "1.1", "1.0")) == ["words: + comes  5", "words: - goes  4"]


def test_a_folder_that_lacks_a_known_release_is_refused(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel("1.0", {"vllm/words.py": "a"})
    data = tmp_path / "data"
    before = _written(wheel("1.1", {"vllm/words.py": "b"}), data)
    monkeypatch.setattr(__main__, "DATA", data)
    (tmp_path / "wheels" / "1.0" / "wheel.json").unlink()
    assert __main__.main(["build", "--offline", "--wheels", str(tmp_path / "wheels")]) == 2
    assert "lacks 1.0, which the data has" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in data.iterdir()}


def test_only_new_wheels_are_read_and_the_rows_are_those_of_all(wheel: Wheel, tmp_path: Path) -> None:
    read: list[str] = []

    def words(tree: Tree) -> Facts:
        read.append(tree.version)
        return _words(tree)

    for version, text in (("1.0", "a bb"), ("1.1", "a bb ccc")):
        folder = wheel(version, {"vllm/words.py": text})
    topics, data = {"words": words}, tmp_path / "data"
    build.write(data, build.build(folder, topics), build.find_wheels(folder))
    wheel("1.2", {"vllm/words.py": "a ccc"})
    read.clear()
    rows = build.extend(folder, data, topics)
    assert read == ["1.2"]
    assert rows == build.build(folder, topics)
