"""The page can be read by everyone: contrast, names of figures and tables, and widths from a phone on."""

import re
from importlib.resources import files
from itertools import product

import pytest
from tests.support.made_comparisons import around, compared, interval
from tests.support.made_runs import Truth, arm, closed, gains, make_run, workload

from draftwise.core import Arm, Condition, Interval, Reason, ReasonCode, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.appearance import PALETTE, PLAIN, VERDICT_COLOURS
from draftwise.reporting.memory_plot import COLOURS
from draftwise.reporting.page import render_page, tabulate_percentiles, tabulate_verdicts
from draftwise.reporting.plots.plot_data import collect
from draftwise.reporting.plots.replay_plots import LOSSES
from draftwise.reporting.plots.speed_plots import draw_distributions, draw_latency_over_load, draw_speedups

CSS = (files("draftwise.reporting") / "page.css.j2").read_text(encoding="utf-8")


def themes() -> list[dict[str, str]]:
    """Return the variables of the light and the dark theme."""
    blocks = re.findall(r":root \{([^}]*--paper[^}]*)\}", CSS)
    return [dict(re.findall(r"--(\w+): (#\w+)", block)) for block in blocks]


def luminance(colour: str) -> float:
    """Return the relative luminance that WCAG 2.2 defines."""
    text = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in text) if len(text) == 3 else text
    channels = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_there_is_a_light_and_a_dark_theme() -> None:
    light, dark = themes()
    assert light.keys() == dark.keys() >= {"paper", "ink", "soft", "panel", "warn", "bad"}
    assert contrast("#000", "#fff") == pytest.approx(21)


@pytest.mark.parametrize(
    ("theme", "ink", "paper"), list(product(themes(), ("ink", "soft", "warn", "bad"), ("paper", "panel")))
)
def test_text_can_be_read(theme: dict[str, str], ink: str, paper: str) -> None:
    assert contrast(theme[ink], theme[paper]) >= 4.5


@pytest.mark.parametrize("colour", VERDICT_COLOURS.values())
def test_white_can_be_read_on_a_badge(colour: str) -> None:
    assert contrast("#fff", colour) >= 4.5


DRAWN = {*PALETTE, PLAIN, *VERDICT_COLOURS.values(), *LOSSES.values(), *(c for c in COLOURS.values() if len(c) == 7)}


@pytest.mark.parametrize(("theme", "colour"), list(product(themes(), sorted(DRAWN))))
def test_what_is_drawn_stands_out(theme: dict[str, str], colour: str) -> None:
    assert contrast(colour, theme["paper"]) >= 3


@pytest.fixture(scope="session")
def conclusions():
    slower = Truth(step_s=lambda prompt, condition: 0.012 * (condition.concurrency or 1), accepted=lambda p: 1, k=3)
    arms = [Arm(name="plain"), arm(3), arm(5)]
    workloads = [workload("code"), workload("prose")]
    return conclude_run(
        make_run(
            {"ngram k=3": gains(1.5), "ngram k=5": slower}, arms=arms, workloads=workloads, conditions=closed(1, 16)
        )
    )


@pytest.fixture(scope="session")
def page(conclusions) -> str:
    return render_page(conclusions)


def test_every_figure_has_a_name_and_a_description(page: str) -> None:
    figures = re.findall(r"<svg (.*?)>(.*?)</desc>", page, re.S)
    assert len(figures) == page.count("<svg") > 5
    for attributes, inside in figures:
        title, about = re.search(r'aria-labelledby="(\S+)" aria-describedby="(\S+)"', attributes).groups()
        assert 'role="img"' in attributes
        assert f'<title id="{title}">' in inside
        assert f'<desc id="{about}">' in inside
    assert len(set(re.findall(r'<title id="(\S+)"', page))) == len(figures)


def test_the_outcome_is_told_in_numbers_to_those_who_cannot_see_it(page: str) -> None:
    about = re.search(r"<desc id=\"crossover-about\">(.*?)</desc>", page, re.S)
    assert about is not None
    assert "code, c=1, ngram k=3: 1.4" in about[1]


def test_every_table_has_a_caption_and_every_header_a_scope(page: str) -> None:
    assert page.count("<table>") == page.count("<caption>") > 5
    assert re.findall(r"<th(?! scope=)[ >]", page) == []
    assert "<main>" in page


def test_no_column_is_cut_or_hidden_at_any_width(page: str) -> None:
    """Cells are broken into lines; on a phone each row is a list of its cells with their names."""
    assert "nowrap" not in CSS
    assert re.search(r"(?<!overflow-x: )hidden", CSS.replace("height: 1px; overflow: hidden", "")) is None
    assert "td::before { content: attr(data-label)" in CSS
    assert page.count("<td ") == page.count('<td data-label="')
    table = tabulate_verdicts([compared(reason=Reason(code=ReasonCode.ANSWERS_NOT_FASTER))])
    assert len(table.columns) <= 8
    assert table.columns[-1] == "reason"
    assert table.rows[0].cells[-1].text.startswith("the server outputs more")


def test_what_to_type_stands_open_above_the_numbers(page: str) -> None:
    before, _, _ = page.partition("<h2>Verdicts</h2>")
    shown, _, folded = before.partition("<details")
    assert "--speculative-config" in shown
    assert "roll back if" in shown
    assert "serve fake" in shown
    # A handful of alerts stands open, too; these are more.
    assert folded.count("SpeculationRollback") > 4


UNKNOWN = Interval(value=0.9, low=0.0, high=float("inf"))


@pytest.mark.parametrize(
    ("given", "span"),
    [
        (UNKNOWN, "interval not known"),
        (interval(0.001, 0.9, 2.0), "2.00 or less"),
        (interval(0.8, 0.9, 400.0), "0.80 or more"),
        (around(1.0), "0.98-1.02"),
    ],
)
def test_an_interval_without_an_end_says_so_in_words(given: Interval, span: str) -> None:
    assert given.span == span


def test_no_table_has_an_interval_of_nothing() -> None:
    share = Interval(value=0.0, low=-1.0, high=1.0)
    each = compared(percentiles={"ttft": {50: around(1.0), 99: UNKNOWN}}, goodput=(1.0, 1.0), goodput_change=share)
    (row,) = tabulate_percentiles([each], with_goodput=True).rows
    assert (row.cells[1].text, row.cells[1].small) == ("0.90x", "interval not known")
    assert (row.cells[-1].text, row.cells[-1].small) == ("100% → 100%", "not known")


def test_a_first_token_that_comes_much_later_is_marked_where_it_occurs() -> None:
    late, early = (compared(verdict=Verdict.ADOPT, ttft=around(ratio)) for ratio in (1.18, 1.05))
    marked = [row.cells[3].kind for row in tabulate_verdicts([late, early]).rows]
    assert marked == ["warning", ""]


def test_an_interval_that_tells_nothing_does_not_squeeze_the_others() -> None:
    each = [
        compared(speedup=ratio)
        for ratio in (interval(1.2, 1.5, 1.8), interval(0.02, 1.1, 60.0), interval(1.3, 1.4, 9.0))
    ]
    (axes,) = draw_speedups(each, 0.03).axes
    left, right = axes.get_xlim()
    assert (axes.get_xscale(), left > 0.5, right < 3) == ("log", True, True)
    arrows = [line.get_marker() for line in axes.lines if line.get_marker() in ("<", ">")]
    assert arrows == ["<", ">", ">"]


@pytest.mark.parametrize("reading", ["ttft", "tpot", "e2e"])
def test_the_panels_of_a_figure_share_their_axes(conclusions, reading: str) -> None:
    data = collect(conclusions)
    cells = [(name, Condition(load=each.load)) for name in ("code", "prose") for each in closed(1, 16)]
    for figure in (draw_latency_over_load(data, data.sweeps[:2], reading), draw_distributions(data, cells, reading)):
        panels = [axes for axes in figure.axes if axes.get_visible()]
        assert len(panels) > 1
        assert len({axes.get_xlim() for axes in panels}) == 1
        assert len({axes.get_ylim() for axes in panels}) == 1
        scales = {
            axes.get_xscale() if "share" in figure._supylabel.get_text() else axes.get_yscale() for axes in panels
        }
        label = f"{figure._supxlabel.get_text()} {figure._supylabel.get_text()}"
        assert ("logarithmic" in label) == (scales == {"log"})
