"""Reads from public repositories which vLLM is in the images of other products.

    python -m catalogue.images FOLDER

FOLDER holds a clone of each repository, with its tags; missing ones are cloned. A product's tag counts its own
releases: the Dockerfile at that tag, or the product's table of its contents, says which vLLM it installs. A version
that is not pinned to a release stays out, so that `draftwise` says that it does not know.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

__all__ = ["SOURCES", "ImageSource", "find_rows", "main"]

_DATA = Path(__file__).parents[1] / "src/draftwise/knowledge/data/images.json"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where one product says which vLLM its images hold."""

    images: Sequence[str]
    """Names of the images."""
    repository: str
    """On GitHub, `owner/name`."""
    path: str
    """Of the Dockerfile, or of the table."""
    pattern: str
    """In a Dockerfile, whose first group is the release of vLLM; in a table with the groups `tag` and `vllm`."""
    is_table: bool = False

    @property
    def folder(self) -> str:
        """Name of its clone."""
        return self.repository.rpartition("/")[2]


SOURCES = (
    ImageSource(
        ("kserve/huggingfaceserver",), "kserve/kserve", "python/huggingface_server.Dockerfile",
        r"^ARG VLLM_VERSION=v?(\S+)",
    ),
    ImageSource(("ascend/vllm-ascend",), "vllm-project/vllm-ascend", "Dockerfile", r"^ARG VLLM_TAG=v?(\S+)"),
    ImageSource(
        ("nvidia/ai-dynamo/vllm-runtime", "nvidia/ai-dynamo/vllm-runtime-cu13"), "ai-dynamo/dynamo",
        "docs/reference/support-matrix.md",
        r"^\| \*\*v(?P<tag>[\w.-]+)\*\*[^|]*\|[^|]*\|[^|]*\| `(?P<vllm>[\w.]+)` \|", is_table=True,
    ),
    ImageSource(
        ("djl-inference",), "deepjavalibrary/djl-serving", "serving/docs/lmi/release_notes.md",
        r"djl-inference:(?P<tag>[\d.]+-lmi[\d.]+)-cu(?:(?!djl-inference:|^## )[\s\S])*?"
        r"^\* vLLM (?:version|has been) upgraded to `(?P<vllm>[\d.]+)`", is_table=True,
    ),
)  # fmt: skip


def find_rows(source: ImageSource, folder: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of one product: image, tag, vLLM's release, and where it is said."""
    clone = folder / source.folder
    if not clone.exists():
        address = f"https://github.com/{source.repository}"
        subprocess.run(["git", "clone", "--bare", "--filter=blob:none", address, str(clone)], check=True)
    found = _read_table(source, clone) if source.is_table else _read_tags(source, clone)
    for tag, release, said in found:
        try:
            Version(release)
        except InvalidVersion:
            continue
        for image in source.images:
            yield {"image": image, "tag": tag, "vllm": release, "source": f"{source.repository} {said}"}


def _read_tags(source: ImageSource, clone: Path) -> Iterator[tuple[str, str, str]]:
    for tag in _git(clone, "tag", "--sort=version:refname").split():
        match = re.search(source.pattern, _git(clone, "show", f"{tag}:{source.path}"), re.MULTILINE)
        if match is not None:
            yield tag, match[1], f"{source.path} at {tag}"


def _read_table(source: ImageSource, clone: Path) -> Iterator[tuple[str, str, str]]:
    for match in re.finditer(source.pattern, _git(clone, "show", f"HEAD:{source.path}"), re.MULTILINE):
        yield match["tag"], match["vllm"], source.path


def _git(clone: Path, *words: str) -> str:
    """Return what git prints; nothing for a file that a tag does not have."""
    ran = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=False)
    return ran.stdout


def main(folder: Path) -> None:
    """Write the rows of every product; what is written by hand stays: `own_tags`, and the rows of `documented`."""
    data = json.loads(_DATA.read_text(encoding="utf-8"))
    rows = [row for source in SOURCES for row in find_rows(source, folder)]
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    own = json.dumps(data["own_tags"], indent=2).replace("\n", "\n  ")
    said = ",\n".join(f"    {json.dumps(row)}" for row in data["documented"])
    text = f'{{\n  "own_tags": {own},\n  "documented": [\n{said}\n  ],\n  "rows": [\n{lines}\n  ]\n}}\n'
    _DATA.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
