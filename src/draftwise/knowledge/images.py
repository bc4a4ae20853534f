"""The vLLM release in a container image: from its own tags, or from the releases of its product.

`python -m catalogue.images` writes the rows of `data/images.json`. Handwritten are the names whose tags are vLLM's own
releases, and the rows that come only from release notes (`documented`). Anything else is unknown.
"""

from __future__ import annotations

import re

from packaging.version import Version

from draftwise.knowledge.rules import is_within
from draftwise.knowledge.stored import read_data

_RELEASE = re.compile(r"v?(0\.\d{1,3}(?:\.\d{1,3}){1,2}(?:\.?(?:rc|post|dev)\d+)?)(?![\d.])")
_SERIES = re.compile(r"v?0\.\d{1,3}(?![\d.])")
_RELEASE_WITHIN = re.compile(r"vllm[_-]?v?(0\.\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
"""A tag that names vLLM with its release, whoever's tag it is: `rocm6.4_vllm_0.10.1`."""


def split_image(image: str) -> tuple[str, str]:
    """Return name and tag of an image, without its digest; the tag may be empty."""
    name = image.partition("@")[0]
    head, separator, tag = name.rpartition(":")
    return (head, tag) if separator and "/" not in tag else (name, "")


def carries_own_tags(image: str) -> bool:
    """Return whether an image's tags are releases of vLLM itself."""
    name, _ = split_image(image)
    return any(re.search(rf"(?:^|/){row['pattern']}$", name) for row in read_data("images")["own_tags"])


def has_half_a_release(image: str) -> bool:
    """Return whether a tag that should be a release of vLLM has only two of its three numbers, such as `v0.33`."""
    return carries_own_tags(image) and _SERIES.match(split_image(image)[1]) is not None


def find_release(image: str) -> str:
    """Return the vLLM release in an image, e.g. 0.19.1 for `vllm/vllm-openai:v0.19.1-cu128`; empty if unknown."""
    name, tag = split_image(image)
    if carries_own_tags(image):
        found = _RELEASE.match(tag)
        return found[1] if found else ""
    for row in _rows():
        is_named = f"/{name}".endswith(f"/{row['image']}")
        if is_named and (tag == row["tag"] or tag.startswith(f"{row['tag']}-")) and not _goes_on(tag, name, row["tag"]):
            return str(row["vllm"])
    within = _RELEASE_WITHIN.search(tag)
    return within[1] if within else ""


def find_packages(image: str) -> frozenset[str]:
    """Return the optional packages that an image is known to hold."""
    (name, tag), release = split_image(image), find_release(image)
    if not release or re.search(r"cpu|rocm|xpu", tag):
        return frozenset()
    for row in read_data("images")["holding"]:
        if re.search(rf"(?:^|/){row['pattern']}$", name) and is_within(row["spans"], Version(release)):
            return frozenset(row["packages"])
    return frozenset()


def _goes_on(tag: str, name: str, known: str) -> bool:
    """Say whether a longer known tag fits as well: `1.1.0-dev.1` is not `1.1.0` in a variant."""
    tags = (row["tag"] for row in _rows() if f"/{name}".endswith(f"/{row['image']}"))
    return any(len(each) > len(known) and (tag == each or tag.startswith(f"{each}-")) for each in tags) or bool(
        re.match(rf"{re.escape(known)}-(?:rc|dev|alpha|beta)", tag)
    )


def _rows() -> list[dict[str, str]]:
    return [*read_data("images")["rows"], *read_data("images")["documented"]]
