"""Without matplotlib pages have everything but their plots, and say how to get these."""

import sys

import pytest
from tests.support.made_runs import arm, closed, gains, make_run, workload

import draftwise
from draftwise.core import Arm, InvalidSetup
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.page import render_page


@pytest.fixture(autouse=True)
def no_matplotlib(monkeypatch):
    """Let nothing of matplotlib, nor what imports it, be imported."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "matplotlib" or name.startswith(
            ("draftwise.reporting.plots", "draftwise.reporting.svg")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_the_report_has_its_tables_and_says_how_to_get_the_plots():
    conclusions = conclude_run(
        make_run(
            {"ngram k=3": gains(1.5)},
            arms=[Arm(name="plain"), arm(3)],
            workloads=[workload("code")],
            conditions=closed(1),
        )
    )
    page = render_page(conclusions)
    assert "<svg" not in page
    assert page.count("matplotlib is not installed") == 1
    assert all(f"<h2>{heading}</h2>" in page for heading in ("Why", "Latencies"))
    assert page.count("<table") > 4


def test_a_plot_of_memory_is_refused_with_the_command():
    sized = draftwise.size("Qwen/Qwen3-8B", gpu="H200")
    with pytest.raises(InvalidSetup, match="needs matplotlib"):
        sized.to_svg()
