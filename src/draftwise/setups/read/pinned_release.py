"""The vLLM release that a text installs next to the command: pinned packages, wheels, tags, and files that it names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from packaging.version import InvalidVersion, Version

from draftwise.core import InvalidSetup
from draftwise.knowledge.images import find_release
from draftwise.setups.read.input_texts import read_text
from draftwise.setups.read.shell.installations import (
    REQUIREMENTS,
    find_installed,
    is_project,
    read_installation,
    settle_release,
)

_RELEASE = r"v?(?P<release>\d+\.\d[\w.]*)"
_PACKAGE = r"(?<![\w./-])vllm(?:\[[\w,\s-]*\])?"
_PINS = tuple(
    re.compile(each, re.MULTILINE)
    for each in (
        rf"{_PACKAGE}[\"']?\s*(?:===?|@)\s*[\"']?{_RELEASE}",
        rf"^[ \t]*-\s+[\"']?vllm={_RELEASE}",  # conda
        rf"^[ \t]*vllm\s*=\s*[^\n]*?[\"'](?:==)?{_RELEASE}[\"']",  # poetry, pixi
        rf"\bvllm-{_RELEASE}(?:(?:\+|%2B)[^\s-]+)?-(?:cp|py)\d",
        rf"vllm-project/vllm(?:\.git)?@{_RELEASE}",
    )
)
_CHECKOUT = re.compile(rf"(?:git\s+checkout|git\s+clone[^\n;&|]{{0,500}}?(?:-b|--branch))[ =]+(?:tags/)?{_RELEASE}")
_OPEN = re.compile(
    rf"{_PACKAGE}[\"']?\s*(?:~=|<|!=|>=?[^\n\"']{{0,200}}<)[^\n\"'\s]*|wheels\.vllm\.ai/(?:nightly|[0-9a-f]{{40}})"
    r"|^[ \t]*vllm\s*=\s*[\"'][\^~<][^\"']*|git\+https?://[^\s\"'@]{0,300}/vllm(?:\.git)?(?:@(?!v?\d)[\w./-]+)?(?![\w./@-])",
    re.MULTILINE,
)
"""What installs a release that only the index knows: ranges with an upper end, nightly builds, commits."""
_AT_LEAST = re.compile(
    rf"(?:{_PACKAGE}[\"']?|^[ \t]*vllm\s*=\s*[\"'])\s*>=?\s*{_RELEASE}(?![^\n\"']{{0,200}}<)", re.MULTILINE
)
"""Ranges without an upper end; a pinned release in them is what they install."""
_END = r"(?=[\s\"',\])]|$)"
_INSTALLER = re.compile(r"(?:\bpip[\d.]*|\b(?:uv|conda|mamba|micromamba|pixi))[ \t]")
_INSTALL, _BY_NAME = re.compile(r"\b(?:install|add|--with)\b"), re.compile(rf"(?:[ \t\"']|\\\n){_PACKAGE}{_END}")
_BARE = (
    re.compile(r"git\s+clone[^\n;&|]{0,500}vllm-project/vllm(?=[\s\S]*\binstall\b)"),
    re.compile(rf"pip_install\([^)]{{0,1000}}?[\"']{_PACKAGE}[\"']"),
    re.compile(rf"^(?:#\s*)?dependencies\s*=\s*\[[^\]]{{0,5000}}?[\"']{_PACKAGE}[\"']", re.MULTILINE),
)
"""What installs whatever release was the newest on that day, if nothing else names one."""
_SET = re.compile(
    rf"^[ \t]*(?:export\s+|ARG\s+|ENV\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*[\"']?{_RELEASE}[\"']?\s*(?:#.*)?$", re.M
)
_USED = re.compile(r"\$?\{(\w+)\}|\$(\w+)")
_INSTALLS_NOTHING = re.compile(
    r"\b(?:pip[\d.]*|conda|mamba)[ \t]+(?:download|uninstall|remove|wheel|show|index|search|cache|list|freeze)\b"
    r"(?:[^\n;&|\\]|\\\n?)*"
)
"""Commands of an installer that leave no package behind."""
_STEPS = re.compile(r"&&|\|\||;|\n")
_COMMENT = re.compile(r"^[ \t]*#(?!\s*(?:dependencies|[\"'])).*$", re.MULTILINE)
"""Lines of comments, but not those of a Python script that declare its packages."""
_FILES = re.compile(
    r"(?<![\w./-])[\w./-]*(?:requirements[\w.-]*\.(?:txt|in)|pyproject\.toml|environment[\w.-]*\.ya?ml|pixi\.toml)"
)
_OF_PYTHON = re.compile(r"from_registry\(\s*[\"'](?P<image>[^\"']*vllm[^\"']*)[\"']")


def install(before: str, text: str, folder: Path) -> str:
    """Return the release in an image after a build step, or what leaves it open; `before` if it installs no vLLM."""
    first = before
    for step in _STEPS.split(text):
        found, pinned = find_installed(step.split()), find_pinned(step, folder)
        missing = [name for name in _FILES.findall(step) if "install" in step and _find_file(folder, name) is None]
        is_one = len(pinned) == 1 and pinned[0][:1].isdecimal()
        before = settle_release(before, pinned[0] if is_one else found or " and ".join((*pinned, *missing)))
    is_open = before == first or is_project(before)
    return settle_release(before, " and ".join(find_pinned(text, folder))) if is_open else before


def find_installed_packages(text: str) -> dict[str, bool]:
    """Return the optional packages that a build step installs (true) or takes away; conditions may hold or not."""
    found: dict[str, bool] = {}
    is_open = re.search(r"\|\||(?:^|[\s;&])(?:if|for|while|case|until)\s", text)
    for step in _STEPS.split(text):
        words = [each for each in step.split() if not each.startswith("--mount=")]
        changed = read_installation(words)
        found |= {name: adds for name, adds in changed.items() if not (adds and is_open)}
    return found


def find_pinned(text: str, folder: Path) -> tuple[str, ...]:
    """Return the different releases that a text installs, as written; several or a range leave the release open."""
    own = _INSTALLS_NOTHING.sub("", _COMMENT.sub("", text))
    named = (_read_beside(folder, name) for name in dict.fromkeys(_FILES.findall(own)))
    whole = "\n".join([own, *(_COMMENT.sub("", each) for each in named)])
    once = Counter(each["name"] for each in _SET.finditer(whole))
    values = {each["name"]: each["release"] for each in _SET.finditer(whole) if once[each["name"]] == 1}
    filled = _USED.sub(lambda found: values.get(found[1] or found[2], found[0]), whole)
    pins = tuple(dict.fromkeys(_find_pins(filled)))
    least = {" ".join(each[0].split()): each["release"] for each in _AT_LEAST.finditer(filled)}
    found = (*pins, *(text for text, release in least.items() if len(pins) != 1 or not _reaches(pins[0], release)))
    bare = chain(_list_bare(filled), (each[0] for pattern in _BARE for each in pattern.finditer(filled)))
    return found or tuple(" ".join(each.split())[-80:] for each in islice(bare, 1))


def _list_bare(text: str) -> Iterator[str]:
    """Yield the commands that install vLLM by its name alone."""
    for command in re.split(r"(?<!\\)\n|[;&|]", text):
        places = [0]
        for pattern in (_INSTALLER, _INSTALL, _BY_NAME):
            found = pattern.search(command, places[-1]) if places else None
            places = [*places, found.start(), found.end()] if found is not None else []
        if places:
            yield command[places[1] : places[-1]]


def read_requirements(installed: str, folder: Path) -> str:
    """Return the release that listed files install; empty if they list no vLLM, the command if one is missing."""
    texts = [_read_beside(folder, name) for name in installed.removeprefix(REQUIREMENTS).split(" -r ")]
    found = find_pinned("\n".join(texts), folder)
    listed = "vllm" if re.search(rf"^{_PACKAGE}\s*(?:[#;].*)?$", "\n".join(texts), re.MULTILINE) else ""
    return " and ".join(found) or listed if all(texts) else installed


def _reaches(pin: str, least: str) -> bool:
    try:
        return Version(pin) >= Version(least)
    except InvalidVersion:
        return False


def _find_pins(text: str) -> Iterator[str]:
    patterns = (*_PINS, _CHECKOUT) if "vllm-project/vllm" in text and text.count("git clone") == 1 else _PINS
    for pattern in patterns:
        yield from (found["release"].rstrip(".") for found in pattern.finditer(text))
    yield from (find_release(found["image"]) or found["image"] for found in _OF_PYTHON.finditer(text))
    yield from (" ".join(found[0].split()) for found in _OPEN.finditer(text))


def _read_beside(folder: Path, name: str) -> str:
    """Return the text of a file that the text names, if it lies in its folder or below."""
    try:
        return "" if (path := _find_file(folder, name)) is None else read_text(path)
    except InvalidSetup:
        return ""


def _find_file(folder: Path, name: str) -> Path | None:
    """Return a file by its path, or one that was copied into an image by its name."""
    path = Path(Path(name).name) if Path(name).is_absolute() else Path(name)
    return folder / path if ".." not in path.parts and (folder / path).is_file() else None
