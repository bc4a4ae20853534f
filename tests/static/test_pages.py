"""Pages that are written from the code say what the code says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import all_rules

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("name", ["findings", "structure"])
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.md").read_text() == load(name).render(), f"run: python docs/{name}.py"


def test_the_page_of_modules_starts_with_a_map() -> None:
    assert load("structure").render().splitlines().index("# Outside the package") <= 50


def test_every_code_has_one_anchor() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', load("findings").render())
    assert sorted(anchors) == sorted({*all_findings(), *all_rules(), *all_advice()})


def test_every_line_of_a_table_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in load("findings").render().splitlines():
        if line.startswith("|"):
            cells = line.count("|")
            width = width or cells
            assert cells == width, line
        else:
            width = 0


def find_anchors(page: Path) -> set[str]:
    """Return what a link into a page can name: its headings as GitHub spells them, and ids that are written out."""
    text = page.read_text(encoding="utf-8")
    titles = (re.sub(r"[`*]", "", title.strip().lower()) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    headings = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
    return headings | set(re.findall(r'<a id="([^"]+)"></a>', text))


def find_broken_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, and to anchors that another page does not have."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        outside = re.match(r"[a-z]+:", link)
        if not outside and not (target.exists() and (not anchor or anchor in find_anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("folder", [".", "docs", "benchmarks", "bundle", "catalogue"])
def test_links_between_pages_lead_somewhere(folder: str) -> None:
    pages = (ROOT / folder).glob("*.md") if folder in (".", "docs") else (ROOT / folder).rglob("*.md")
    broken = {page.relative_to(ROOT).as_posix(): found for page in sorted(pages) if (found := find_broken_links(page))}
    assert not broken


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text('## A `name`, and more\n<a id="code"></a>\n')
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-name-and-more) [b](other.md#code) [c](https://x#y) [d](gone.md) [e](other.md#gone)")
    assert find_broken_links(page) == ["gone.md", "other.md#gone"]
