"""Assembles the site's Markdown: handwritten pages with their generated parts, generated pages, files they link to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os.path import relpath
from pathlib import Path
from urllib.parse import urlsplit

from docs.site import findings, methods, observability, reference, releases
from docs.site.markdown import slug

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (findings.pages, releases.pages, reference.pages)
"""Functions that yield the path and the text of each generated page."""
PARTS: Mapping[str, Callable[..., str]] = {
    "findings-acting": findings.list_acting,
    "findings-all": findings.list_all,
    "releases-all": releases.list_releases,
    "verbs": reference.list_verbs,
    "promql": observability.list_rules,
    "alerts": observability.list_alerts,
    "panels": observability.list_panels,
    "metrics": reference.list_metrics,
    "metrics-old": reference.list_old_metrics,
    **methods.PARTS,
}
"""Functions that write what stands for `<!-- generated: NAME ARGUMENTS -->` in a handwritten page."""

_MARK = re.compile(r"^<!-- generated: (?P<name>[\w-]+) ?(?P<arguments>.*?) -->$", re.MULTILINE)
_CHOICE = re.compile(r"^<!-- (?:runs|runs against a server|not run: .*) -->\n", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+ )(.*)$", re.MULTILINE)


def assemble(into: Path) -> None:
    """Write every page, and every file of the repository that one links to, below a folder.

    Raises:
        FileNotFoundError: a page links to a file that the repository does not have.
        ValueError: two pages have one path.
    """
    shutil.copytree(DOCS / "assets", into / "assets")
    for path, text in read_pages():
        page = into / path
        if page.exists():
            raise ValueError(f"{path} is written twice")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_LINK.sub(partial(_link, path=path, into=into), text), encoding="utf-8")


def read_pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each page, with the links that it has in the repository."""
    for page in sorted(DOCS.rglob("*.md")):
        yield page.relative_to(DOCS).as_posix(), render(page.read_text(encoding="utf-8"))
    for pages in PAGES:
        for path, text in pages():
            yield path, _name_headings(text)


def render(text: str) -> str:
    """Return a handwritten page with its generated parts, without the marks that only tests read.

    Commands that need the address of the repository get that of the variable REPOSITORY.
    """
    text = _MARK.sub(lambda mark: PARTS[mark["name"]](*mark["arguments"].split()), text)
    if address := os.environ.get("REPOSITORY"):
        text = text.replace("<URL of this repository>", address).replace(
            "<owner>/draftwise", urlsplit(address).path[1:]
        )
    return _name_headings(_CHOICE.sub("", text))


def _name_headings(text: str) -> str:
    """Return a page whose headings have the anchors that code hosts give them."""
    code = [found.span() for found in _FENCE.finditer(text)]

    def name(heading: re.Match[str]) -> str:
        if heading[2].endswith("}") or any(first <= heading.start() < last for first, last in code):
            return heading[0]
        return f"{heading[0]} {{: #{slug(heading[2])} }}"

    return _HEADING.sub(name, text)


def _link(link: re.Match[str], path: str, into: Path) -> str:
    """Return a link as the site has it: what lies outside of `docs` is copied to `source` as text."""

    def _write_source(file: Path, text: str) -> str:
        copy = into / "source" / f"{file.relative_to(ROOT).as_posix().replace('/.', '/').lstrip('.')}.txt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
        return relpath(copy, (into / path).parent)

    target = (DOCS / path).parent.joinpath(link["path"]).resolve()
    if target.is_relative_to(DOCS):
        return link[0]
    if target.is_dir():
        listed = sorted(each.relative_to(target).as_posix() for each in target.iterdir())
        readme = target / "README.md"
        return _write_source(target / "index", readme.read_text("utf-8") if readme.exists() else "\n".join(listed))
    return _write_source(target, target.read_text("utf-8"))
