"""Where sources come from: folders, wheels, installations, and an index as pip is configured."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version
from tests.support.package_index import serve_index

from draftwise.core import BackendError, InvalidSetup
from draftwise.extract.wheel_sources import open_folder, open_installed, open_released, open_wheel

FILES = {
    "vllm/__init__.py": "",
    "vllm/_version.py": "__version__ = version = '9.1.0'\n",
    "vllm/config/speculative.py": "x = 1\n",
    "vllm/kernels.so": "not wanted",
    "vllm-9.1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.1.0\n",
    "vllm-9.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-manylinux_2_28_x86_64\n",
    "vllm-9.1.0.dist-info/RECORD": "",
}
NAME = "vllm-9.1.0-cp38-abi3-manylinux_2_28_x86_64.whl"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_text(text)
    return tmp_path / "unpacked"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    file = tmp_path / "index" / "vllm" / NAME
    file.parent.mkdir(parents=True)
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 4, 18, 0, 0, 0)), text)
    return file


@pytest.mark.parametrize("inside", ["", "vllm"])
def test_a_folder_is_the_root_or_the_package(unpacked: Path, inside: str) -> None:
    sources = open_folder(unpacked / inside)
    assert (sources.root, sources.version) == (unpacked, Version("9.1.0"))
    assert sources.read_from == str(unpacked / inside).rstrip("/")
    assert len(sources.built) == len("2026-04-18")


def test_metadata_tells_the_version_where_the_package_does_not(unpacked: Path) -> None:
    (unpacked / "vllm/_version.py").unlink()
    assert open_folder(unpacked).version == Version("9.1.0")
    (unpacked / "vllm-9.1.0.dist-info/METADATA").unlink()
    with pytest.raises(InvalidSetup, match="does not say which release"):
        open_folder(unpacked)


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match="does not hold the Python sources of vLLM"):
        open_folder(tmp_path)


def test_of_a_wheel_only_sources_are_unpacked(wheel: Path) -> None:
    with open_wheel(wheel) as sources:
        assert (sources.version, sources.built, sources.read_from) == (Version("9.1.0"), "2026-04-18", NAME)
        assert sources.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert sorted(path.name for path in sources.root.rglob("*") if path.is_file()) == [
            "METADATA", "__init__.py", "_version.py", "speculative.py",
        ]  # fmt: skip
    assert not sources.root.exists()


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("nothing")
    for file in (tmp_path / "a.whl", tmp_path / "b.whl"):
        with pytest.raises(InvalidSetup, match="cannot be read as a wheel"), open_wheel(file):
            pass


def test_an_interpreter_tells_where_its_vllm_is_and_does_not_import_it(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unpacked / "vllm/__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(unpacked))
    sources = open_installed(sys.executable)
    assert (sources.root, sources.version) == (unpacked, Version("9.1.0"))
    assert sources.read_from == f"installed in {unpacked}"


def test_an_interpreter_without_vllm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(InvalidSetup, match="has no vLLM installed"):
        open_installed(sys.executable)
    with pytest.raises(InvalidSetup, match="Cannot find out which vLLM"):
        open_installed("/no/python")


def test_an_index_that_serves_parts_is_asked_for_parts(wheel: Path, pip: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    for address, asked in serve_index(wheel, ranges=True):
        pip.setenv("PIP_INDEX_URL", address)
        with open_released(Version("9.1.0"), lambda done, total: told.append((done, total))) as sources:
            assert sources.version == Version("9.1.0")
            assert sources.read_from == f"{address}vllm/{NAME}"
            assert (sources.root / "vllm/config/speculative.py").is_file()
        assert told[-1][0] == told[-1][1]
        assert all(request.startswith("GET bytes=") for request in asked[-2:])


def test_an_index_without_parts_is_left_to_pip(wheel: Path, pip: pytest.MonkeyPatch) -> None:
    for address, asked in serve_index(wheel, ranges=False):
        pip.setenv("PIP_INDEX_URL", address)
        with open_released(Version("9.1.0")) as sources:
            assert sources.version == Version("9.1.0")
        assert asked[-1] == "GET None"


def test_a_local_mirror_needs_no_network(wheel: Path, pip: pytest.MonkeyPatch) -> None:
    pip.setenv("PIP_NO_INDEX", "1")
    pip.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with open_released(Version("9.1.0")) as sources:
        assert (sources.version, sources.built) == (Version("9.1.0"), "2026-04-18")


def test_a_release_that_the_index_lacks_is_the_users_mistake(wheel: Path, pip: pytest.MonkeyPatch) -> None:
    for address, _ in serve_index(wheel, ranges=True):
        pip.setenv("PIP_INDEX_URL", address)
        with pytest.raises(InvalidSetup, match=r"no wheel of vllm==9\.2") as caught, open_released(Version("9.2")):
            pass
        assert caught.value.findings[0].code == "facts-no-release"


def test_an_index_that_cannot_be_reached_is_a_failure_outside(pip: pytest.MonkeyPatch) -> None:
    pip.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    with pytest.raises(BackendError, match=r"pip cannot get vllm==9\.1.*network"), open_released(Version("9.1")):
        pass


def test_without_pip_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InvalidSetup, match="download the wheel") as caught, open_released(Version("9.1")):
        pass
    assert caught.value.findings[0].code == "facts-no-pip"
