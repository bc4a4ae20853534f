"""Where the sources of a release come from: a wheel, a folder, an installed vLLM, or the index that pip uses."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.version import InvalidVersion, Version

from draftwise.core import InvalidSetup
from draftwise.extract.wheel import Progress, unpack_sources

__all__ = ["Sources", "open_folder", "open_installed", "open_released", "open_wheel"]

_FIND = """
import importlib.util, json
found = importlib.util.find_spec("vllm")
print(json.dumps(list(found.submodule_search_locations) if found else []))
"""
"""Finds vLLM without importing it, which takes seconds and may need a GPU."""
_VERSION = re.compile(r"""^__version__\s*=\s*(?:version\s*=\s*)?['"]([^'"]+)['"]""", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of one release on this disk."""

    root: Path
    """The folder that holds `vllm/`."""
    version: Version
    built: str
    """Date of the newest file, e.g. `2026-04-18`."""
    read_from: str
    """Where they come from, for people."""
    sha256: str = ""
    """Of the wheel, where they come from one."""


def open_folder(folder: Path, *, read_from: str = "", built: str = "", sha256: str = "") -> Sources:
    """Return the sources that lie in a folder: an unpacked wheel, site-packages, or the package itself.

    Raises:
        InvalidSetup: it holds no sources of vLLM, or they do not say of which release they are.
    """
    root = folder.parent if folder.name == "vllm" and (folder / "__init__.py").is_file() else folder
    if not (root / "vllm" / "__init__.py").is_file():
        raise InvalidSetup.because(
            "facts-no-sources",
            f"{read_from or folder} does not hold the Python sources of vLLM.",
            fix="Give vllm==X, a wheel of vLLM, or a folder with `vllm/__init__.py` in it.",
        )
    return Sources(
        root=root,
        version=_find_version(root, read_from or str(folder)),
        built=built or _newest_date(root / "vllm"),
        read_from=read_from or str(folder.absolute()),
        sha256=sha256,
    )


@contextmanager
def open_wheel(file: Path, progress: Progress = lambda _done, _all: None) -> Iterator[Sources]:
    """Unpack a wheel while its sources are needed.

    Raises:
        InvalidSetup: it is no wheel of vLLM, or it is damaged.
    """
    with TemporaryDirectory(prefix="draftwise-") as folder:
        try:
            built = unpack_sources(file, Path(folder), progress)
            with file.open("rb") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        except (OSError, zipfile.BadZipFile) as error:
            raise InvalidSetup.because(
                "facts-no-sources", f"{file} cannot be read as a wheel ({error}).", fix="Give a wheel of vLLM."
            ) from None
        yield open_folder(Path(folder), read_from=file.name, built=built, sha256=sha256)


def open_installed(python: str) -> Sources:
    """Return the sources of the vLLM that an interpreter would import; nothing of it is imported.

    Raises:
        InvalidSetup: the interpreter cannot be run, or finds no vLLM.
    """
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=True)
        places = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InvalidSetup.because(
            "facts-no-sources",
            f"{python} cannot be asked for its vLLM ({error}).",
            where="--python",
            fix="Give the interpreter of an environment, such as /opt/venv/bin/python.",
        ) from None
    if not places:
        raise InvalidSetup.because(
            "facts-no-sources",
            f"{python} has no vLLM installed.",
            where="--python",
            fix="Give vllm==X, a wheel or a folder, or another interpreter with --python.",
        )
    return open_folder(Path(places[0]), read_from=f"installed in {Path(places[0]).parent}")


@contextmanager
def open_released(version: Version, progress: Progress = lambda _done, _all: None) -> Iterator[Sources]:
    """Fetch the sources of a release from the package index that pip is configured for.

    Only the sources are transferred where the index serves parts of files, else pip downloads the whole wheel.

    Raises:
        InvalidSetup: the index has no such release, or pip is not installed.
        BackendError: the index cannot be reached.
    """
    from draftwise.extract.index import fetch_sources, find_wheel

    with TemporaryDirectory(prefix="draftwise-") as folder:
        wheel = find_wheel(f"vllm=={version}")
        built = fetch_sources(wheel, Path(folder), progress)
        yield open_folder(Path(folder), read_from=wheel.url, built=built, sha256=wheel.sha256)


def _find_version(root: Path, read_from: str) -> Version:
    """Return the version that the sources say, else the metadata beside them."""
    file = root / "vllm" / "_version.py"
    found = _VERSION.search(file.read_text(encoding="utf-8")) if file.is_file() else None
    texts = [found.group(1)] if found else []
    for metadata in root.glob("vllm*.dist-info/METADATA"):
        texts += re.findall(r"^Version: (\S+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)[:1]
    for text in texts:
        try:
            return Version(text)
        except InvalidVersion:
            continue
    raise InvalidSetup.because(
        "facts-no-sources",
        f"{read_from} does not say which release of vLLM it is: there is no vllm/_version.py and no METADATA.",
        fix="Give a wheel, or a folder into which one was unpacked.",
    )


def _newest_date(package: Path) -> str:
    newest = max(file.stat().st_mtime for file in package.rglob("*.py"))
    return datetime.fromtimestamp(newest, UTC).date().isoformat()
