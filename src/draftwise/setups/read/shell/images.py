"""What the name of a container image tells: whether vLLM is in it, which release, and what it runs."""

from __future__ import annotations

import re

__all__ = ["has_own_entry", "holds_no_models", "image_version", "is_vllm_image"]

_VLLM = re.compile(r"(?:^|/)[\w.-]*vllm[\w.-]*(?:/[\w.-]+)?$|(?:^|/)huggingfaceserver$")
_RELEASE = re.compile(r"v?(0\.\d{1,3}(?:\.\d{1,3}){0,2}(?:\.?(?:rc|post|dev)\d+)?)(?![\d.])")
_RELEASE_WITHIN = re.compile(r"vllm[_-]?v?(0\.\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_OWN_NUMBERS = re.compile(r"(?:^|/)(?:lmcache/|huggingfaceserver$|[\w.-]*vllm-omni)")
"""Images whose tags count the releases of something else."""
_AS_PUBLISHED = re.compile(r"(?:docker\.io/)?(?:vllm/vllm-openai[\w.-]*|kserve/huggingfaceserver)$")
_OWN_ENTRY = re.compile(r"(?:^|/)vllm-(?:openai[\w.-]*|cpu-release-repo)$")


def holds_no_models(image: str) -> bool:
    """Say whether an image is one that vLLM or KServe publish; others may have models baked in."""
    return _AS_PUBLISHED.match(_split(image)[0]) is not None


def is_vllm_image(image: str) -> bool:
    """Say whether an image carries vLLM, as far as its name tells."""
    return _VLLM.search(_split(image)[0]) is not None


def has_own_entry(image: str) -> bool:
    """Say whether an image is of the family whose entry point is the server itself (`vllm/vllm-openai`)."""
    return _OWN_ENTRY.search(_split(image)[0]) is not None


def image_version(image: str) -> str:
    """Return the vLLM release that a tag names, e.g. 0.19.1 for `vllm/vllm-openai:v0.19.1-cu128`; empty for none."""
    name, tag = _split(image)
    if _OWN_NUMBERS.search(name):
        return ""
    found = _RELEASE.match(tag) or _RELEASE_WITHIN.search(tag)
    return found[1] if found else ""


def _split(image: str) -> tuple[str, str]:
    name = image.partition("@")[0]
    head, separator, tag = name.rpartition(":")
    return (head, tag) if separator and "/" not in tag else (name, "")
