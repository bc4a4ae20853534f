"""The report of `decide` in Chromium: its main pictures fit a phone, in full and large enough to read."""

import pytest

from draftwise.core import Arm
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.page import render_page
from tests.support.browser import WIDTHS, Visit, browser, serving_folder
from tests.support.made_runs import arm, closed, gains, make_run, workload

__all__ = ["browser"]
FIGURES = """[...document.querySelectorAll('figure.fits')].map((figure) => {
  const shown = [...figure.querySelectorAll('svg')].filter((each) => each.getBoundingClientRect().width);
  const edges = shown.flatMap((each) => [...each.querySelectorAll('text')]).map((each) => each.getBoundingClientRect());
  return {count: shown.length, title: shown[0].querySelector('title').textContent,
    scrolls: figure.scrollWidth > figure.clientWidth, smallest: Math.min(...edges.map((each) => each.height)),
    left: Math.min(...edges.map((each) => each.left)), right: Math.max(...edges.map((each) => each.right))};
})"""
TABLES = "[...document.querySelectorAll('.grids table')].map((each) => each.getBoundingClientRect().right)"


@pytest.fixture(scope="module", params=[(1, 4, 16), (1,)], ids=["loads", "one-load"])
def report(request, tmp_path_factory):
    """A report of two workloads and nine candidates with long names."""
    arms = [Arm(name="plain"), *(arm(k) for k in range(2, 11))]
    truths = {each.name: gains(0.7 + 0.1 * index) for index, each in enumerate(arms[1:])}
    texts = [workload("code-completions-of-a-long-name"), workload("prose")]
    run = make_run(truths, arms=arms, workloads=texts, conditions=closed(*request.param))
    folder = tmp_path_factory.mktemp("report")
    (folder / "report.html").write_text(render_page(conclude_run(run)))
    with serving_folder(folder) as url:
        yield f"{url}report.html", len(request.param) > 1


@pytest.mark.parametrize("width", WIDTHS)
def test_main_pictures_fit(browser, report, width):
    url, is_sweep = report
    with Visit(browser, url, width=width) as visit:
        figures = visit.page.evaluate(FIGURES)
        main = "Speed-up against load" if is_sweep else "Speed-up of every candidate"
        assert [each["title"] for each in figures] == [main, "The run over time"]
        for each in figures:
            assert each["count"] == 1, each
            assert not each["scrolls"], each
            assert each["smallest"] >= 11, each
            assert each["left"] >= 0, each
            assert each["right"] <= width, each
        assert all(right <= width for right in visit.page.evaluate(TABLES))
        assert visit.overflow <= 0
        assert not visit.find_barriers()
