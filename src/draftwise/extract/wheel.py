"""Takes the Python sources out of a wheel, on disk or behind a URL, without the gigabytes of kernels beside them.

A wheel is a zip file: its directory lies at the end, and package indexes answer range requests, so a release costs some
tens of megabytes instead of hundreds.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

__all__ = ["Progress", "RemoteFile", "unpack_sources"]

_READ_AHEAD = 4 << 20
_PARTIAL = 206
Progress = Callable[[int, int], None]
"""Told the bytes that are done and those that there are in all."""


class RemoteFile(io.RawIOBase):
    """A file behind a URL, read by ranges; a window of it is kept, since zip members are read front to back.

    Raises:
        httpx.HTTPError: the server cannot be reached or does not answer ranges.
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
    """Write the sources and METADATA of a wheel into a folder; return the date of the newest one.

    Raises:
        zipfile.BadZipFile: it is no wheel, or it is damaged.
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
