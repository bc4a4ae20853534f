"""Commands that install packages: the vLLM release, optional packages, and files that list them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from draftwise.knowledge.validators import RAY_RUNS, list_asked_packages, list_packages, name_package

PINNED = re.compile(r"vllm(?:\[[\w,-]*\])?(?:==|@)v?(\d[\w.+]*)")
"""A pinned vLLM release, as in `pip install`."""
OPEN = re.compile(r"vllm(?:\[[\w,\s-]*\])?(?:\s*[<>~!].*)?")
"""The package without a release."""
_INSTALLERS = re.compile(r"(?:.*/)?(?:pip[\d.]*|uv|conda|mamba|micromamba|pixi)")
_PROJECT = re.compile(
    r"(?:python[\d.]* |(?<!\S))\S*setup\.py (?:install|develop)|(?:uv|pdm|pipenv) sync"
    r"|(?:poetry|pdm|pipenv|pixi) install"
)
"""What installs the project around it, and whatever that needs."""
_LOCAL = re.compile(
    r"\.{1,2}(?:\[.*)?|(?!-)(?!.*://)[^=<>@]*[/*?][^=<>@]*|file:.*|git\+.*/[^/@]*vllm[^/@]*(?:@.*)?"
    r"|https?:.*/[^/]*vllm(?:[^/]*|[\w-]*/archive/.*)\.(?:whl|zip|gz)"
)
"""An argument of pip that is a folder, a wheel of any release, or a fork."""
_OF_OTHERS = re.compile(r"(?:.*/)?(?!.*vllm)[a-z][\w.]*-\d[^*?]*\.whl", re.IGNORECASE)
"""A wheel of another package."""
_VALUED = frozenset(
    [
        "-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "--index", "-f",
        "--find-links", "-t", "--target", "--prefix", "--root", "-p", "--python", "--cache-dir", "--log", "--cert",
        "--group", "--src", "-b", "--build", "--no-binary", "--only-binary", "--upgrade-package", "-P",
        "--reinstall-package", "--exclude", "--refresh-package",
        "--no-build-package", "--no-binary-package", "--no-build-isolation-package",
    ]
)  # fmt: skip
"""Options of pip and uv whose next word is not installed as a package."""
_ELSEWHERE = frozenset({"-t", "--target", "--prefix", "--root", "-p", "--python", "--dry-run"})
"""Options with which nothing is installed for the server's Python."""
_INSTALLER = re.compile(r"(?:sudo )?(?:python[\d.]* -m )?(?:uv )?pip[\d.]*(?: -\S+)*")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[([^\]]*)\])?\s*(?:[<>=!~@][^;]*)?")
REQUIREMENTS = "pip install -r "
"""How an installation begins of what a file lists."""
_UPGRADING = frozenset({"-U", "--upgrade", "--upgrade-package", "-P", "--force-reinstall", "--pre"})


def find_installed(texts: Sequence[str]) -> str | None:
    """Return the release in `pip install vllm==RELEASE`, or what leaves it open: `-U vllm`; None without vLLM."""
    if (project := _PROJECT.search(" ".join(texts[:4]))) is not None:
        return project[0]
    named = [each.strip("\"'") for each in texts] if "install" in texts else []
    pin = next((found[1] for each in named if (found := PINNED.fullmatch(each))), None)
    if pin is not None or not any(map(_INSTALLERS.fullmatch, named)):
        return pin
    kept = next((each for each in named if OPEN.fullmatch(each)), None)
    return f"-U {kept}" if kept and not _UPGRADING.isdisjoint(named) else kept or _find_project(texts)


def _find_project(texts: Sequence[str]) -> str | None:
    """Return the command that installs a folder, a wheel or a fork, which nobody reads; None without one."""
    named = (word.strip("\"'") for before, word in pairwise(texts[texts.index("install") :]) if before not in _VALUED)
    found = next((each for each in named if _LOCAL.fullmatch(each) and not _OF_OTHERS.fullmatch(each)), None)
    return found and f"pip install {found}"


def find_requirements(texts: Sequence[str]) -> str:
    """Return the command that installs what files list, which may be vLLM; empty for any other command."""
    if "install" not in texts or not any(map(_INSTALLERS.fullmatch, texts)):
        return ""
    files = [after for before, after in pairwise(texts) if before in ("-r", "--requirement")]
    files += [found[1] for each in texts if (found := re.fullmatch(r"(?:-r|--requirement=)(.+)", each))]
    return REQUIREMENTS + " -r ".join(files) if files else ""


def is_project(installed: str) -> bool:
    """Say whether an installation is of a folder, a wheel or a fork whose release another text may name."""
    return bool(re.match(r"pip install |" + _PROJECT.pattern, installed))


def settle_release(before: str, installed: str | None) -> str:
    """Return the release after an installation into an image with one, or what leaves it open.

    A range that the release before is in, and a name alone, change nothing unless they upgrade.
    """
    if not installed or installed[0].isdecimal():
        return installed or before
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(re.sub(r"^[^<>=!~]*", "", installed))
        is_kept = before[:1].isdecimal() and wanted.contains(before, prereleases=True)
    except InvalidSpecifier:
        return installed
    return before if is_kept and OPEN.fullmatch(installed) else installed


def read_installation(words: Sequence[str]) -> dict[str, bool]:
    """Return the optional packages that a command of pip installs (true) or takes away; `RAY_RUNS` if it starts Ray."""
    texts = [each.strip("\"'") for each in words]
    names = [each.rpartition("/")[2] for each in texts]
    if names[:2] == ["ray", "start"] or "multi-node-serving.sh" in names[:2]:  # which begins with `ray start`
        return {RAY_RUNS: True}
    place = next((index for index, each in enumerate(texts) if each in ("install", "uninstall", "remove")), None)
    if place is None:
        return {}
    adds = texts[place] == "install"
    elsewhere = not _ELSEWHERE.isdisjoint(each.partition("=")[0] for each in texts[place + 1 :])
    if adds and (elsewhere or not _INSTALLER.fullmatch(" ".join(texts[:place]))):
        return {}
    named = [each for before, each in pairwise(texts[place:]) if before not in _VALUED and before != "-e"]
    found: set[str] = set()
    for each in filter(None, map(_REQUIREMENT.fullmatch, named)):
        name = name_package(each[1])
        extras = re.split(r"[\s,]+", each[2] or "") if name == "vllm" and adds else ()
        found |= {name, *(row.package for row in list_packages() if row.extra and row.extra in extras)}
    return dict.fromkeys(found & list_asked_packages(), adds)
