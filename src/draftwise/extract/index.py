"""Finds and fetches wheels as pip is configured to: its index, mirror, credentials, proxy and certificates."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import httpx
from packaging.version import Version

from draftwise.core import BackendError, InvalidSetup
from draftwise.extract.wheel import Progress, RemoteFile, unpack_sources

__all__ = ["IndexedWheel", "fetch_sources", "find_wheel"]

_GLIBC = ("1", "2010", "2014", *(f"_2_{minor}" for minor in range(17, 42)))
_ANY_MACHINE = (
    *("--no-deps", "--only-binary=:all:", "--python-version=3.12", "--disable-pip-version-check"),
    *(f"--platform=manylinux{name}_x86_64" for name in _GLIBC),
)
"""The CUDA wheel for x86-64, whatever machine this is: its Python sources are those of every build."""


@dataclass(frozen=True, slots=True)
class IndexedWheel:
    """A wheel that an index offers."""

    version: Version
    url: str
    sha256: str


def find_wheel(version: Version) -> IndexedWheel:
    """Ask pip where the wheel of a vLLM release is.

    Raises:
        InvalidSetup: the index has no such release, or pip is not installed.
        BackendError: the index cannot be reached.
    """
    with TemporaryDirectory(prefix="draftwise-") as target:
        options = ("--dry-run", "--ignore-installed", "--quiet", "--report=-", f"--target={target}")
        found = json.loads(_run_pip("install", version, options))["install"][0]["download_info"]
    return IndexedWheel(version, found["url"], found.get("archive_info", {}).get("hashes", {}).get("sha256", ""))


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
        _run_pip("download", wheel.version, (f"--dest={whole}",))
        return unpack_sources(next(Path(whole).glob("*.whl")), folder, progress)


def _run_pip(command: str, version: Version, options: Sequence[str]) -> str:
    if importlib.util.find_spec("pip") is None:
        raise InvalidSetup.because(
            "facts-no-pip",
            f"pip, which finds and fetches wheels, is not installed for {sys.executable}.",
            fix=f"Install pip, or download the wheel of vLLM {version} yourself and give the file.",
        )
    words = [sys.executable, "-m", "pip", command, *options, *_ANY_MACHINE, f"vllm=={version}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _explain(version, done.stderr)
    return done.stdout


def _explain(version: Version, said: str) -> Exception:
    """Return the error that pip's words come to."""
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    unreachable = "connection broken" in said or "(from versions: none)" in said
    if "No matching distribution" in said and not unreachable:
        return InvalidSetup.because(
            "facts-no-release",
            f"The package index that pip uses has no wheel of vLLM {version}.",
            fix="Give a release that it has (`pip index versions vllm`), a wheel, or an installed vLLM with --python.",
        )
    told = errors[0] if errors else said.strip()[-300:]
    return BackendError(
        f"pip cannot get vLLM {version}: {told[:300]} Check the network and pip's configuration (`pip config list`), "
        "or give a wheel or an installed vLLM."
    )
