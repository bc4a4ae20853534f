"""`draftwise ui` in Chromium: at two widths, in the dark, by keyboard alone, and as axe-core sees it."""

import shutil
import threading
from pathlib import Path

import pytest

from draftwise.core.progress import Silent
from draftwise.verbs.ui import ui
from tests.support.browser import WIDTHS, Visit, browser
from tests.ui.test_pages_server import COMMAND, DOCUMENTS, counting, make_run_of_one_load, make_runs

__all__ = ["browser", "counting"]


OVERLAPS = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map((each) => [each.textContent, each.getBoundingClientRect()]);
  const touch = (a, b) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
  return texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([, b]) => touch(a, b)).map(([two]) => [one, two]));
})"""
"""Pairs of labels of a chart that lie on each other."""


class Until(Silent):
    """Ends the server when the tests have ended."""

    def __init__(self):
        self.stop_requested, self.text, self.is_up = False, "", threading.Event()

    def status(self, text):
        self.text = text
        self.is_up.set()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = make_runs(tmp_path_factory.mktemp("runs"), 12)
    shutil.copytree(DOCUMENTS / "run", folder / "whole")
    make_run_of_one_load(folder / "one-load")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        until = Until()
        thread = threading.Thread(target=ui.run, args=(ui.request(folder, port=0), until))
        thread.start()
        assert until.is_up.wait(30)
        yield until.text.split()[1]
        until.stop_requested = True
        thread.join(30)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page(browser, url, width, dark):
    for path in ("", "judge", "forecast", "watch", "compare"):
        with Visit(browser, f"{url}{path}", width=width, dark=dark) as visit:
            visit.page.wait_for_selector("main form")
            if path == "judge":
                visit.page.wait_for_selector("article")
            assert not visit.find_barriers(), path
            assert visit.overflow <= 0, path
            assert not visit.troubles, path
            assert all(each.startswith((url, "data:")) for each in visit.requests)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_and_the_chart_of_it(browser, url, width):
    with Visit(browser, url, width=width) as visit:
        visit.page.wait_for_selector("figure svg")
        visit.page.click("a:text-is('whole')")
        visit.page.wait_for_selector("figcaption:text-is('The run over time')")
        read = "() => document.querySelector('figure svg')?.getBoundingClientRect().toJSON()"
        box = visit.page.wait_for_function(read).json_value()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        read = "[...document.querySelectorAll('figure text')].map((each) => each.getBoundingClientRect().height)"
        sizes = visit.page.evaluate(read)
        assert min(sizes) >= 11  # drawn for the width, not scaled down
        assert not visit.page.evaluate(OVERLAPS)
        assert visit.overflow <= 0
        assert not visit.find_barriers()
        assert not visit.troubles


@pytest.mark.parametrize("width", WIDTHS)
def test_a_list_of_runs_of_few_days_and_a_run_of_one_load(browser, url, width):
    with Visit(browser, url, width=width) as visit:
        visit.page.wait_for_selector("figure svg")
        assert not visit.page.evaluate(OVERLAPS)
        visit.page.click("a:text-is('one-load')")
        visit.page.wait_for_selector("figcaption:text-is('Requests in flight: 4, temperature 0')")
        assert not visit.page.evaluate(OVERLAPS)
        read = "[...document.querySelector('figure svg').children].map((each) => parseFloat(each.textContent))"
        assert 0 not in visit.page.evaluate(read)  # an interval that is not known bounds nothing
        assert visit.overflow <= 0
        assert not visit.find_barriers()


def test_two_runs_by_keyboard_alone(browser, url):
    with Visit(browser, url) as visit:
        page = visit.page
        for name in ("before", "after"):
            page.locator(f"input[name={name}] >> nth={0 if name == 'before' else 1}").focus()
            page.keyboard.press("Space")
        page.get_by_role("button", name="Compare the two").focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*")
        assert page.locator("article, .bad").count()
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_forms_share_the_cards_of_the_playground(browser, url):
    with Visit(browser, f"{url}judge") as visit:
        page = visit.page
        page.wait_for_selector("article")
        page.fill("[name=sources]", COMMAND)
        page.wait_for_selector("article .badge.good:text('accepted')")
        page.wait_for_selector("[data-complete]")
        for verb in ("upgrade", "size", "pick", "explain"):
            page.click(f"[data-verb={verb}]")
            page.wait_for_selector(f".state:text-matches('^{verb}: ')")
            assert not page.locator("article .badge:text('cannot be answered')").count(), verb
        assert not visit.troubles


@pytest.mark.parametrize("width", WIDTHS)
def test_a_forecast_to_drag(browser, url, width):
    with Visit(browser, f"{url}forecast", width=width) as visit:
        page = visit.page
        for name in ("profile", "calibration"):
            page.fill(f"[name={name}]", str(Path(DOCUMENTS / f"{name}.json").resolve()))
        page.keyboard.press("Enter")
        page.wait_for_selector("figure svg path")
        before = page.locator("figure svg").inner_html()
        for name in ("load", "prompt_tokens"):
            page.focus(f"input[name={name}]")
            for _ in range(3):
                page.keyboard.press("PageUp")
            page.wait_for_function("(old) => document.querySelector('figure svg').innerHTML !== old", arg=before)
            before = page.locator("figure svg").inner_html()
        assert visit.overflow <= 0
        assert not visit.find_barriers()
        assert not visit.troubles


def test_a_watch_is_live_and_can_be_stopped(browser, url, counting):
    with Visit(browser, f"{url}watch", width=400) as visit:
        page = visit.page
        page.fill("[name=urls]", counting)
        page.fill("[name=interval_s]", "0.2")
        page.click("button:text-is('Watch')")
        page.wait_for_selector("[data-job] table")
        assert not visit.find_barriers()
        assert visit.overflow <= 0
        page.click("button:text-is('Stop')")
        page.wait_for_selector(".state:text-is('Stopped.')")
        assert not visit.troubles
