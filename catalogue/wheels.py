"""Brings the Python sources of vLLM's wheels to this machine, without the gigabytes of kernels beside them.

    python -m catalogue.wheels FOLDER [VERSION ...]      (default: every release from 0.9.2 on)

FOLDER/VERSION then holds the sources, the METADATA and `wheel.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from draftwise.extract.wheel_sources import RemoteFile, unpack_sources

__all__ = ["OLDEST", "Wheel", "fetch", "releases"]

OLDEST = Version("0.9.2")
_INDEX = "https://pypi.org/simple/vllm/"


class Wheel:
    """One release's CUDA wheel for x86-64 on the package index."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.url: str = entry["url"]
        self.filename: str = entry["filename"]
        self.sha256: str = entry["hashes"]["sha256"]
        _, version, build, _ = parse_wheel_filename(self.filename)
        self.version: Version = version
        self.build = build


def releases(client: httpx.Client) -> Iterator[Wheel]:
    """Yield the newest build of every final release from `OLDEST` on, oldest release first."""
    answer = client.get(_INDEX, headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"})
    answer.raise_for_status()
    wheels: dict[Version, Wheel] = {}
    for entry in _entries(answer):
        if not entry["filename"].endswith("x86_64.whl"):
            continue
        wheel = Wheel(entry)
        known = wheels.get(wheel.version)
        if wheel.version >= OLDEST and not wheel.version.is_prerelease and (not known or wheel.build > known.build):
            wheels[wheel.version] = wheel
    yield from (wheels[version] for version in sorted(wheels))


def _entries(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the files of an index page, in the JSON form of PEP 691 or in the HTML form of PEP 503."""
    if "json" in answer.headers["content-type"]:
        yield from answer.json()["files"]
        return
    from html.parser import HTMLParser

    found: list[dict[str, Any]] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            href = dict(attrs).get("href")
            if tag == "a" and href:
                url = answer.url.join(href)
                digest = url.fragment.removeprefix("sha256=")
                found.append(
                    {"url": str(url.copy_with(fragment=None)), "filename": url.path.rsplit("/", 1)[1],
                     "hashes": {"sha256": digest}}
                )  # fmt: skip

    Links().feed(answer.text)
    yield from found


def fetch(client: httpx.Client, wheel: Wheel, folder: Path) -> Path:
    """Unpack the sources of a wheel into FOLDER/VERSION and return that path; a folder that is there is kept."""
    out = folder / str(wheel.version)
    if (out / "wheel.json").exists():
        return out
    partial = out.with_suffix(out.suffix + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    built = unpack_sources(RemoteFile(client, wheel.url), partial)
    about = {"version": str(wheel.version), "filename": wheel.filename, "sha256": wheel.sha256, "built": built}
    (partial / "wheel.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return out


def main(arguments: list[str]) -> None:
    """Fetch the releases named on the command line, or all."""
    if not arguments:
        sys.exit(__doc__)
    folder, wanted = Path(arguments[0]), {Version(text) for text in arguments[1:]}
    with httpx.Client(follow_redirects=True, timeout=180) as client:
        known = {wheel.version: wheel for wheel in releases(client)}
        if unknown := sorted(wanted - known.keys()):
            sys.exit(f"There is no wheel of vLLM {', '.join(map(str, unknown))} for x86-64 on the package index.")
        for version, wheel in known.items():
            if not wanted or version in wanted:
                print(fetch(client, wheel, folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
