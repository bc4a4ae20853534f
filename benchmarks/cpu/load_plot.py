"""Draws what load_accuracy.py found: errors of each tool by number of streams, and how many tokens/s each takes.

python benchmarks/cpu/load_plot.py benchmarks/cpu/results/load_accuracy.json benchmarks/cpu/results/load_accuracy.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from load_accuracy import capacities
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise.reporting.svg import PALETTE, to_svg

FIELDS = {"ttft_error_ms": "error of time to first token, ms", "gap_error_ms": "error of a gap between chunks, ms"}
_FLOOR_MS = 1e-3


def main() -> None:
    """Write the figure."""
    source, target = map(Path, sys.argv[1:3])
    result = json.loads(source.read_text())
    about = f"A line for each load generator; the numbers are in {source.name}."
    title = "Errors of load generators, by streams"
    target.write_text(to_svg(lambda: draw(result), "load-accuracy", title=title, about=about, alone=True))


def draw(result: Mapping[str, Any]) -> Figure:
    """Return the three panels."""
    tools = [tool["name"] for tool in result["tools"]]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    for axes, (field, label) in zip((first, second), FIELDS.items(), strict=True):
        draw_errors(axes, result, tools, field)
        axes.set_ylabel(label)
    rates = capacities(result)
    third.barh(tools[::-1], [rates[tool] / 1e3 for tool in tools[::-1]], color=PALETTE[: len(tools)][::-1], height=0.6)
    third.set_xlabel("thousand tokens/s received at most")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(tools))
    return figure


def draw_errors(axes: Axes, result: Mapping[str, Any], tools: list[str], field: str) -> None:
    """Draw, for each tool and number of streams, the median error as a dot and a line up to the 99th percentile."""
    loads = sorted({row["streams"] for row in result["accuracy"]})
    for number, tool in enumerate(tools):
        found = {row["streams"]: row[field] for row in result["accuracy"] if row["tool"] == tool and row[field]}
        places = [loads.index(load) + 0.16 * (number - (len(tools) - 1) / 2) for load in found]
        medians = [max(_FLOOR_MS, each["median"]) for each in found.values()]
        tails = [max(_FLOOR_MS, each["p99"]) for each in found.values()]
        axes.vlines(places, medians, tails, color=PALETTE[number], linewidth=1.5)
        axes.plot(places, medians, "o", color=PALETTE[number], markersize=5, label=f"{tool}: median to P99")
    axes.set_yscale("log")
    axes.set_xticks(range(len(loads)), [f"{load} stream{'s' * (load > 1)}" for load in loads])


if __name__ == "__main__":
    main()
