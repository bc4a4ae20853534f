"""Gets the sources of a release from a wheel, a folder, an installed vLLM, or pip's configured index.

A wheel is a zip file with its directory at the end, and package indexes answer range requests. So a release takes tens
of megabytes instead of hundreds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

import httpx
from packaging.version import InvalidVersion, Version

from draftwise.core import BackendError, cause_of
from draftwise.knowledge.messages import refusal, text_of
from draftwise.machine.network import find_bundle, open_client

_READ_AHEAD = 4 << 20
_PARTIAL = 206
Progress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by ranges. Buffers a window, because zip members are read front to back.

    Raises:
        httpx.HTTPError: the server is unreachable or does not support ranges.
    """

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client, self._url, self._at = client, url, 0
        self._start, self._window = 0, b""
        answer = client.head(url)
        answer.raise_for_status()
        self.size = int(answer.headers["content-length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def read(self, count: int = -1) -> bytes:
        count = self.size - self._at if count < 0 else min(count, self.size - self._at)
        first = self._at - self._start
        if not 0 <= first <= first + count <= len(self._window):
            self._start, self._window, first = self._at, self._fetch(max(count, _READ_AHEAD)), 0
        self._at += count
        return self._window[first : first + count]

    def _fetch(self, count: int) -> bytes:
        last = min(self.size, self._at + count) - 1
        # A server that takes no ranges would send the whole file: its first bytes tell before they are all read.
        with self._client.stream("GET", self._url, headers={"Range": f"bytes={self._at}-{last}"}) as answer:
            answer.raise_for_status()
            if answer.status_code != _PARTIAL:
                raise io.UnsupportedOperation(f"{self._url} is served as a whole only")
            return answer.read()


def unpack_sources(wheel: RemoteFile | Path, folder: Path, progress: Progress = lambda _done, _all: None) -> str:
    """Extract a wheel's sources and METADATA into a folder; return the date of the newest file.

    Raises:
        zipfile.BadZipFile: the file is not a wheel, or is damaged.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if _wanted(member.filename)]
        total, done = sum(member.compress_size for member in members), 0
        for member in sorted(members, key=lambda member: member.header_offset):
            archive.extract(member, folder)
            done += member.compress_size
            progress(done, total)
    newest = max((member.date_time for member in members), default=(1980, 1, 1))
    return "{:04}-{:02}-{:02}".format(*newest[:3])


def _wanted(name: str) -> bool:
    if name.endswith("/METADATA"):
        return True
    return name.startswith("vllm/") and (name.endswith(".py") or (name.endswith(".json") and "/configs/" not in name))


_GLIBC = ("1", "2010", "2014", *(f"_2_{minor}" for minor in range(17, 42)))
_ANY_MACHINE = (
    *("--no-deps", "--only-binary=:all:", "--python-version=3.12", "--disable-pip-version-check"),
    *(f"--platform=manylinux{name}_x86_64" for name in _GLIBC),
)
"""The CUDA wheel for x86-64, whatever machine this is: its Python sources are those of every build."""


@dataclass(frozen=True, slots=True)
class IndexedWheel:
    """A wheel on a package index."""

    requirement: str
    """Requirement, such as `vllm==0.33.0`."""
    url: str
    sha256: str


def find_wheel(requirement: str) -> IndexedWheel:
    """Ask pip for the URL of a release's wheel.

    Args:
        requirement: a package and its version, such as `vllm==0.33.0`.

    Raises:
        InvalidSetup: the index lacks the release, or pip is not installed.
        BackendError: the index is unreachable.
    """
    with TemporaryDirectory(prefix="draftwise-") as target:
        options = ("--dry-run", "--ignore-installed", "--quiet", "--report=-", f"--target={target}")
        found = json.loads(_run_pip("install", requirement, options))["install"][0]["download_info"]
    return IndexedWheel(requirement, found["url"], found.get("archive_info", {}).get("hashes", {}).get("sha256", ""))


def fetch_sources(wheel: IndexedWheel, folder: Path, progress: Progress) -> str:
    """Download a wheel's sources into a folder; return the date of the newest file.

    Raises:
        BackendError: the download fails.
    """
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        return unpack_sources(Path(unquote(parts.path)), folder, progress)
    try:
        with open_client(timeout=60) as client:
            return unpack_sources(RemoteFile(client, wheel.url), folder, progress)
    except (httpx.HTTPError, io.UnsupportedOperation, KeyError, zipfile.BadZipFile):
        # What pip knows and this client does not: credentials of a mirror, its certificate, a server without ranges.
        with TemporaryDirectory(prefix="draftwise-") as whole:
            return unpack_sources(_download_with_pip(wheel, Path(whole)), folder, progress)


def _download_with_pip(wheel: IndexedWheel, folder: Path) -> Path:
    _run_pip("download", wheel.requirement, (f"--dest={folder}",))
    return next(folder.glob("*.whl"))


def download_wheel(wheel: IndexedWheel, part: Path, progress: Progress) -> None:
    """Download a whole wheel into a file. Resumes an earlier attempt.

    Raises:
        BackendError: the download fails. The partial file is kept.
    """
    parts = urlsplit(wheel.url)
    if parts.scheme == "file":
        shutil.copyfile(unquote(parts.path), part)
        return
    try:
        with open_client(timeout=60) as client:
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
        raise refusal("facts-no-pip", executable=sys.executable, requirement=requirement)
    words = [sys.executable, "-m", "pip", command, *options, *_ANY_MACHINE, requirement]
    bundle = find_bundle()
    variables = os.environ if bundle is None else {"PIP_CERT": bundle[1], **os.environ}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise _explain(requirement, done.stderr)
    return done.stdout


def _explain(requirement: str, said: str) -> Exception:
    """Return the error that pip's words come to."""
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    unreachable = "connection broken" in said or "(from versions: none)" in said
    if "No matching distribution" in said and not unreachable:
        return refusal("facts-no-release", requirement=requirement, name=requirement.partition("==")[0])
    told = errors[0] if errors else said.strip()[-300:]
    return BackendError(text_of("wheel-not-fetched", requirement=requirement, told=told[:300]))


_FIND = """
import importlib.util, json
found = importlib.util.find_spec("vllm")
print(json.dumps(list(found.submodule_search_locations) if found else []))
"""
"""Finds vLLM without importing it, which takes seconds and may need a GPU."""
_VERSION = re.compile(r"""^__version__\s*=\s*(?:version\s*=\s*)?['"]([^'"]+)['"]""", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSources:
    """The sources of one release on disk."""

    root: Path
    """Folder that holds `vllm/`."""
    version: Version
    built: str
    """Date of the newest file, such as `2026-04-18`."""
    read_from: str
    """Human-readable origin."""
    sha256: str = ""
    """Digest of the wheel; empty for other sources."""


def open_folder(folder: Path, *, read_from: str = "", built: str = "", sha256: str = "") -> VllmSources:
    """Return the sources in a folder: an unpacked wheel, site-packages, or the package itself.

    Raises:
        InvalidSetup: the folder holds no sources of vLLM, or their release is unknown.
    """
    root = folder.parent if folder.name == "vllm" and (folder / "__init__.py").is_file() else folder
    if not (root / "vllm" / "__init__.py").is_file():
        raise refusal("facts-no-sources", case="wheel", read_from=read_from or folder)
    return VllmSources(
        root=root,
        version=_find_version(root, read_from or str(folder)),
        built=built or _newest_date(root / "vllm"),
        read_from=read_from or str(folder.absolute()),
        sha256=sha256,
    )


@contextmanager
def open_wheel(file: Path) -> Iterator[VllmSources]:
    """Unpack a wheel for the duration of the block.

    Raises:
        InvalidSetup: the file is not a wheel of vLLM, or is damaged.
    """
    with TemporaryDirectory(prefix="draftwise-") as folder:
        try:
            built = unpack_sources(file, Path(folder))
            with file.open("rb") as content:
                sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        except (OSError, zipfile.BadZipFile) as error:
            raise refusal("facts-no-sources", case="file", file=file, cause=cause_of(error)) from None
        yield open_folder(Path(folder), read_from=file.name, built=built, sha256=sha256)


def open_installed(python: str) -> VllmSources:
    """Return the sources of the vLLM that an interpreter would import, without importing it.

    Raises:
        InvalidSetup: the interpreter cannot run, or finds no vLLM.
    """
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=True)
        places = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise refusal("facts-no-sources", case="python", python=python, cause=cause_of(error)) from None
    if not places:
        raise refusal("facts-no-sources", case="installed", python=python)
    return open_folder(Path(places[0]), read_from=f"installed in {Path(places[0]).parent}")


@contextmanager
def open_released(version: Version, progress: Progress = lambda _done, _all: None) -> Iterator[VllmSources]:
    """Fetch the sources of a release from pip's configured package index.

    If the index supports ranges, only the sources are transferred; otherwise, the whole wheel.

    Raises:
        InvalidSetup: the index lacks the release, or pip is not installed.
        BackendError: the index is unreachable.
    """

    with TemporaryDirectory(prefix="draftwise-") as folder:
        wheel = find_wheel(f"vllm=={version}")
        built = fetch_sources(wheel, Path(folder), progress)
        yield open_folder(Path(folder), read_from=wheel.url, built=built, sha256=wheel.sha256)


def _find_version(root: Path, read_from: str) -> Version:
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
    raise refusal("facts-no-sources", case="release", read_from=read_from)


def _newest_date(package: Path) -> str:
    newest = max(file.stat().st_mtime for file in package.rglob("*.py"))
    return datetime.fromtimestamp(newest, UTC).date().isoformat()
