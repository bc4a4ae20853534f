"""Finds and fetches wheels as pip is configured to: its index, mirror, credentials, proxy and certificates."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import httpx

from draftwise.core import BackendError, InvalidSetup
from draftwise.extract.wheel import Progress, RemoteFile, unpack_sources

__all__ = ["IndexedWheel", "download_wheel", "fetch_sources", "find_wheel"]

_GLIBC = ("1", "2010", "2014", *(f"_2_{minor}" for minor in range(17, 42)))
_ANY_MACHINE = (
    *("--no-deps", "--only-binary=:all:", "--python-version=3.12", "--disable-pip-version-check"),
    *(f"--platform=manylinux{name}_x86_64" for name in _GLIBC),
)
"""The CUDA wheel for x86-64, whatever machine this is: its Python sources are those of every build."""


@dataclass(frozen=True, slots=True)
class IndexedWheel:
    """A wheel that an index offers."""

    requirement: str
    """Such as `vllm==0.33.0`."""
    url: str
    sha256: str


def find_wheel(requirement: str) -> IndexedWheel:
    """Ask pip where the wheel of a release is.

    Args:
        requirement: a package and its version, such as `vllm==0.33.0`.

    Raises:
        InvalidSetup: the index has no such release, or pip is not installed.
        BackendError: the index cannot be reached.
    """
    with TemporaryDirectory(prefix="draftwise-") as target:
        options = ("--dry-run", "--ignore-installed", "--quiet", "--report=-", f"--target={target}")
        found = json.loads(_run_pip("install", requirement, options))["install"][0]["download_info"]
    return IndexedWheel(requirement, found["url"], found.get("archive_info", {}).get("hashes", {}).get("sha256", ""))


def fetch_sources(wheel: IndexedWheel, folder: Path, progress: Progress) -> str:
    """Unpack the sources of a wheel into a folder; return the date of the newest one.

    Raises:
        BackendError: the download fails.
    """
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        return unpack_sources(Path(unquote(parts.path)), folder, progress)
    try:
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            return unpack_sources(RemoteFile(client, wheel.url), folder, progress)
    except (httpx.HTTPError, io.UnsupportedOperation, KeyError, zipfile.BadZipFile):
        # What pip knows and this client does not: credentials of a mirror, its certificate, a server without ranges.
        return _download(wheel, folder, progress)


def _download(wheel: IndexedWheel, folder: Path, progress: Progress) -> str:
    with TemporaryDirectory(prefix="draftwise-") as whole:
        return unpack_sources(_download_with_pip(wheel, Path(whole)), folder, progress)


def _download_with_pip(wheel: IndexedWheel, folder: Path) -> Path:
    _run_pip("download", wheel.requirement, (f"--dest={folder}",))
    return next(folder.glob("*.whl"))


def download_wheel(wheel: IndexedWheel, part: Path, progress: Progress) -> None:
    """Download a whole wheel into a file; what is there of it from an earlier attempt is not transferred again.

    Raises:
        BackendError: the download fails; what came is kept.
    """
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        shutil.copyfile(unquote(parts.path), part)
        return
    try:
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            _continue_download(client, wheel.url, part, progress)
    except httpx.HTTPStatusError:  # pip knows credentials and certificates that this client does not
        with TemporaryDirectory(prefix="draftwise-") as whole:
            shutil.move(_download_with_pip(wheel, Path(whole)), part)
    except httpx.HTTPError as error:
        raise BackendError(
            f"{wheel.requirement} cannot be downloaded ({error or type(error).__name__}). Check the network and give "
            "the command again: it goes on where it was."
        ) from None


def _continue_download(client: httpx.Client, url: str, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={done}-"} if done else {}
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:  # it is all there
            return
        answer.raise_for_status()
        is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
        done = done if is_rest else 0
        total = done + int(answer.headers.get("content-length", 0))
        with part.open("ab" if is_rest else "wb") as file:
            for piece in answer.iter_raw():
                file.write(piece)
                done += len(piece)
                progress(done, total)


def _run_pip(command: str, requirement: str, options: Sequence[str]) -> str:
    if importlib.util.find_spec("pip") is None:
        raise InvalidSetup.because(
            "facts-no-pip",
            f"pip, which finds and fetches wheels, is not installed for {sys.executable}.",
            fix=f"Install pip, or download the wheel of {requirement} yourself and give the file.",
        )
    words = [sys.executable, "-m", "pip", command, *options, *_ANY_MACHINE, requirement]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _explain(requirement, done.stderr)
    return done.stdout


def _explain(requirement: str, said: str) -> Exception:
    """Return the error that pip's words come to."""
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    unreachable = "connection broken" in said or "(from versions: none)" in said
    if "No matching distribution" in said and not unreachable:
        return InvalidSetup.because(
            "facts-no-release",
            f"The package index that pip uses has no wheel of {requirement}.",
            fix=f"Give a release that it has (`pip index versions {requirement.partition('==')[0]}`), or a file.",
        )
    told = errors[0] if errors else said.strip()[-300:]
    return BackendError(
        f"pip cannot get {requirement}: {told[:300]} Check the network and pip's configuration (`pip config list`), "
        "or give a file."
    )
