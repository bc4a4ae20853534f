"""The documentation site in Chromium: narrow and wide, light and dark, without a request to another host."""

import pytest
from docs.site.__main__ import build

from tests.support.browser import WIDTHS, Visit, browser, npm_folder, serving_folder

__all__ = ["browser"]

PAGES = ("", "start/manifest/", "methods/eagle3/", "releases/", "findings/unknown-method/", "reference/metrics/")


@pytest.fixture(scope="module")
def url(browser, tmp_path_factory):
    npm_folder("axe-core")
    pytest.importorskip("zensical", reason="zensical is not installed")
    with serving_folder(build(tmp_path_factory.mktemp("site") / "docs")) as address:
        yield address


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_can_be_read_by_everybody(browser, url, width, dark):
    for page in PAGES:
        with Visit(browser, url + page, width=width, dark=dark) as visit:
            visit.page.wait_for_load_state("networkidle")
            scheme = visit.page.evaluate("document.body.dataset.mdColorScheme")
            assert (page, scheme) == (page, "slate" if dark else "default")
            assert (page, visit.find_barriers()) == (page, [])
            assert (page, visit.overflow <= 0) == (page, True)
            assert all(each.startswith((url, "data:", "blob:")) for each in visit.requests)


def test_search_finds_a_finding_by_its_code(browser, url):
    with Visit(browser, url) as visit:
        visit.page.wait_for_load_state("networkidle")
        visit.page.keyboard.press("Control+k")
        visit.page.wait_for_selector("input:focus")
        visit.page.keyboard.type("drafts-stopped")
        visit.page.wait_for_selector("a[href*='drafts-stopped']")
