"""Writes THIRD-PARTY.md: the packages that an installation brings, with the license that each declares.

Run it where all extras are installed: `python -m docs.third_party`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, requires
from pathlib import Path

from docs.site.markdown import table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "THIRD-PARTY.md"
NOT_SHIPPED = {"dev", "docs", "test"}
"""Extras of who works on draftwise."""


def declared() -> dict[str, list[Requirement]]:
    """Return what each way to install asks for; `draftwise` is the one without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ways = {"draftwise": project["dependencies"]} | {
        f"[{extra}]": needs for extra, needs in project["optional-dependencies"].items() if extra not in NOT_SHIPPED
    }
    return {
        way: [Requirement(each) for each in needs if not each.startswith("draftwise")] for way, needs in ways.items()
    }


def reach(needs: list[Requirement]) -> Iterator[str]:
    """Yield the names of packages and of what they need in turn, as far as they are installed."""
    seen: set[tuple[str, str]] = set()
    left = [(need, extra) for need in needs for extra in ("", *need.extras)]
    while left:
        need, extra = left.pop()
        name = canonicalize_name(need.name)
        if (name, extra) in seen or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        seen.add((name, extra))
        yield name
        try:
            further = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue
        for each in further:
            if not each.marker or each.marker.evaluate({"extra": extra}):
                left += [(Requirement(f"{each.name}[{e}]" if e else each.name), e) for e in ("", *each.extras)]


def license_of(about: PackageMetadata) -> str:
    """Return a package's license as it declares it: expression, else classifier, else one line of text."""
    if expression := about.get_all("License-Expression"):
        return str(expression[0])
    named = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each.startswith("License ::")]
    free = str((about.get_all("License") or [""])[0]).strip()
    return " and ".join(named) or (free if free and "\n" not in free else "see the package")


def licenses() -> dict[str, tuple[str, str]]:
    """Return each package's license and the first way to install that brings it."""
    found: dict[str, tuple[str, str]] = {}
    for way, needs in declared().items():
        for name in sorted(reach(needs)):
            if name not in found:
                found[name] = license_of(metadata(name)), way
    return found


def main() -> None:
    """Write the page."""
    rows = ((name, license_, f"`{way}`") for name, (license_, way) in sorted(licenses().items()))
    PAGE.write_text(
        "# Packages of others\n\nAn installation brings these packages, each under the license that it declares.\n"
        "draftwise's wheel holds none of them. CUDA builds of torch also bring NVIDIA's libraries, under NVIDIA's\n"
        "licenses. Written by `python -m docs.third_party`.\n\n"
        + table(("Package", "License", "Comes with"), rows)
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
