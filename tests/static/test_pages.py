"""Pages are written from the code and say what it says; the site is built from them, and every link leads somewhere."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from docs.site.__main__ import build
from docs.site.assemble import assemble, read_pages, render
from docs.site.examples import show_example
from docs.site.figures import draw
from docs.site.markdown import slug
from docs.site.methods import list_pages

import draftwise
from draftwise.core import Finding
from draftwise.core.finding import SITE
from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.examples import RuleExample
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.methods import Method, all_methods
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.vllm import releases

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("name", ["structure"])
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.md").read_text() == load(name).render(), f"run: python docs/{name}.py"


def test_the_page_of_modules_starts_with_a_map() -> None:
    assert load("structure").render().splitlines().index("# Outside the package") <= 50


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """Path -> text of each page of the site."""
    return dict(read_pages())


def test_every_code_has_a_page_at_its_address_and_a_line_of_the_index(site: dict[str, str]) -> None:
    codes = {*all_findings(), *all_rules(), *all_advice(), *all_defects()}
    pages = {path for path in site if path.startswith("findings/")}
    assert pages == {"findings/index.md"} | {f"findings/{code}.md" for code in codes}
    assert {
        f"findings/{code}.md" for code in re.findall(r"\]\(([\w.-]+)\.md\)", site["findings/index.md"])
    } == pages - {"findings/index.md"}
    assert Finding.info("unknown-key", "").url == f"{SITE}findings/unknown-key/"


def test_the_pages_of_rules_show_what_their_examples_say(site: dict[str, str]) -> None:
    """Building a page runs its example, and fails where that no longer meets the rule."""
    shown = {code for code in {*all_rules(), *all_findings()} if "\n## Example" in site[f"findings/{code}.md"]}
    missing = {
        "flag-unknown",  # of a Setup in Python, or of a run that another release is asked about
        "refusals-unread",  # of a release that a user adds
    }
    assert shown & all_rules().keys() == all_rules().keys() - missing
    without = sorted(all_findings().keys() - shown)
    assert not without, f"An example for each (CONTRIBUTING.md says how): {without}"
    assert "draftwise check --vllm" in site["findings/unknown-method.md"]
    assert re.search(r"^\+.*runner V1", site["findings/v2-lacks-method.md"], re.MULTILINE)
    written_by_python = re.compile(r"\{'|\['|'None'|<class|\w+Error\(|\[Errno")
    said = {
        code: re.findall(r"```(?:text|diff)\n(.*?)```", site[f"findings/{code}.md"], re.DOTALL)[-1] for code in shown
    }
    assert {code: text for code, text in said.items() if written_by_python.search(text)} == {}


def test_an_example_that_does_not_meet_its_rule_is_no_example() -> None:
    plain = RuleExample(vllm="0.33.0", command="vllm serve Qwen/Qwen3-8B")
    for code in ("unknown-method", "v2-lacks-method"):
        with pytest.raises(ValueError, match=code):
            show_example(code, plain)


def test_every_line_of_a_table_has_as_many_cells_as_its_head(site: dict[str, str]) -> None:
    for path, text in site.items():
        width = 0
        for line in text.splitlines():
            if line.startswith("|"):
                cells = len(re.findall(r"(?<!\\)\|", line))
                width = width or cells
                assert cells == width, f"{path}: {line}"
            else:
                width = 0


def test_the_site_is_built_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="zensical is not installed")
    folder = build(tmp_path / "docs")
    asks = re.compile(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)")
    for page in ("index.html", "findings/unknown-key/index.html"):
        html = (folder / page).read_text(encoding="utf-8")
        assert "<h1" in html
        assert [each for each in asks.findall(html) if not each.startswith(SITE)] == []
    linked = re.compile(r'href="(?![a-z]+:)([^"#]+)')
    pages = [path for path in folder.rglob("index.html") if path.parent.parent.name != "findings"]
    gone = {
        (page.parent.name, to)
        for page in pages
        for to in linked.findall(page.read_text("utf-8"))
        if to != "/"
        if not (page.parent / to).exists()
    }  # also what the strict build does not look at, such as copies of sources
    assert gone == set()


def test_a_link_to_a_file_that_is_not_there_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.site.assemble.read_pages", lambda: iter([("a.md", "[x](../benchmarks/gone.md)")]))
    with pytest.raises(FileNotFoundError, match=r"gone\.md"):
        assemble(tmp_path)


def test_every_method_and_release_has_a_page_and_a_place_in_the_navigation(site: dict[str, str]) -> None:
    navigation = (DOCS / "site" / "zensical.toml").read_text(encoding="utf-8")
    pages = set(list_pages())
    assert {*all_methods(), "p-eagle"} == pages
    assert {f"methods/{page}.md" for page in pages} <= {path for path in site if f'"{path}"' in navigation}
    assert {f"releases/{release}.md" for release in releases() if not release.added} <= site.keys()
    handwritten = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {path for path in handwritten if f'"{path}"' not in navigation} == set()


@pytest.mark.parametrize("page", list_pages())
def test_a_config_is_shown_for_the_releases_that_take_it(page: str, site: dict[str, str]) -> None:
    """Against the command line: the first and the last release of each line of the table say what it says."""
    text = site[f"methods/{page}.md"]
    shapes = dict(re.findall(r"^([A-C]):\n\n```sh\nvllm serve (.+?)\n```", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^\| \[`([\d.]+)`\]\S+(?: to \[`([\d.]+)`\]\S+)? \| ([A-C]) \| (.+) \|$", text, re.MULTILINE)
    assert lines
    for first, last, shape, said in lines:
        for release in (first, last or first):
            command = f"vllm serve {shapes[shape]}"
            (judged,) = draftwise.check(
                command.replace("\\\n", " "), vllm=release, installed=("arctic-inference",)
            ).judgements
            starts = judged.outcome in ("accepted", "not judged")
            assert starts is said.startswith(("accepted", "nothing against it")), (release, command)
            codes = {finding.code for finding in judged.findings}
            assert set(re.findall(r"\[`([a-z0-9.-]+)`\]", said)) <= codes


@pytest.mark.parametrize("method", all_methods().values(), ids=lambda method: method.name)
def test_a_figure_is_a_drawing_with_a_description(method: Method) -> None:
    for parallel in {False, method.parallel != "never"}:
        drawn = ElementTree.fromstring(draw(method, parallel=parallel))
        assert method.name in (drawn.findtext("figcaption") or "")
        places = [float(each.get("x", 0)) for each in drawn.iter("{http://www.w3.org/2000/svg}rect")]
        assert places
        assert 0 <= min(places) <= max(places) < 480


def test_commands_name_the_repository_that_the_site_is_built_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOSITORY", "https://code.example/team/draftwise")
    assert render("git clone <URL of this repository>\n") == "git clone https://code.example/team/draftwise\n"
    assert render("uses: <owner>/draftwise@<tag>\n") == "uses: team/draftwise@<tag>\n"


def test_headings_get_the_anchors_of_code_hosts() -> None:
    assert slug("A `name`, and more") == "a-name-and-more"
    assert render("# A\n\n<!-- runs -->\n```\n# not one\n```\n") == "# A {: #a }\n\n```\n# not one\n```\n"


GENERATED = {DOCS / "findings", DOCS / "releases", DOCS / "reference" / "verbs"}
"""Folders of pages that only the site has; its strict build looks at links to them."""


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
        outside = re.match(r"[a-z]+:", link) or target.resolve().parent in GENERATED
        if not outside and not (target.exists() and (not anchor or anchor in find_anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("folder", [".", "docs", "benchmarks", "bundle", "catalogue"])
def test_links_between_pages_lead_somewhere(folder: str) -> None:
    pages = (ROOT / folder).glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md")
    broken = {page.relative_to(ROOT).as_posix(): found for page in sorted(pages) if (found := find_broken_links(page))}
    assert not broken


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text('## A `name`, and more\n<a id="code"></a>\n')
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-name-and-more) [b](other.md#code) [c](https://x#y) [d](gone.md) [e](other.md#gone)")
    assert find_broken_links(page) == ["gone.md", "other.md#gone"]
