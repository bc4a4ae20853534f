"""A sizing as an SVG: memory with and without the drafter, and concurrency against context length."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from draftwise.core.budget import Budget
from draftwise.knowledge.messages import text_of
from draftwise.plan.size.sizing import Sizing
from draftwise.plan.size.view import contexts_of, items
from draftwise.reporting.appearance import INK, PLAIN
from draftwise.reporting.svg import to_svg

_GIB = 1 << 30
COLOURS = {
    "target": "#3b82f6",
    "drafter": "#b7791f",
    "activations": "#0891b2",
    "overhead": PLAIN,
    "kv": "#059669",
    "outside": "#ef4444",
    "reserve": f"{PLAIN}40",
}
_LABELLED = 0.055
"""Share of the GPU from which on a bar's piece has room for its number."""


def draw(sizing: Sizing) -> str:
    """Return an SVG file that follows the reader's light or dark theme."""
    about = text_of("memory-plot", name=sizing.request.gpu.name)
    return to_svg(lambda: draw_figure(sizing), "size", title="Memory and concurrency", about=about, alone=True)


def draw_figure(sizing: Sizing) -> Figure:
    """Return the figure with both panels."""
    named = _name_budgets(sizing)
    figure = Figure(layout="constrained", figsize=(7.6, 2.1 + 0.55 * len(named) + 2.4))
    top, bottom = figure.subplots(2, 1, height_ratios=[0.9 + 0.55 * len(named), 3.0])
    pieces = _draw_memory(top, sizing, named)
    figure.legend(list(pieces.values()), list(pieces), loc="outside upper left", ncols=4, columnspacing=1.2)
    _draw_concurrency(bottom, sizing, named)
    return figure


def _name_budgets(sizing: Sizing) -> list[tuple[str, Budget]]:
    if sizing.plain is sizing.budget:
        return [("no drafter", sizing.budget)]
    request = sizing.request
    name = f"{request.drafter.method} k={request.num_speculative_tokens}"
    return [(name, sizing.budget), ("no drafter", sizing.plain)]


def _draw_memory(axes: Axes, sizing: Sizing, named: list[tuple[str, Budget]]) -> dict[str, Any]:
    """Draw one stacked bar for each budget and return a piece of each kind by its label."""
    seen: dict[str, Any] = {}
    total = sizing.budget.device
    for row, (_, budget) in enumerate(named):
        left = 0.0
        for item in items(budget):
            width = item.num_bytes / _GIB
            bar = axes.barh(row, width, left=left, height=0.62, color=COLOURS[item.key], linewidth=0)
            seen.setdefault(item.label, bar)
            if item.num_bytes > _LABELLED * total:
                axes.text(left + width / 2, row, f"{width:.1f}", ha="center", va="center", fontsize=9)
            left += width
    axes.axvline(total / _GIB, color=INK, linewidth=0.8)
    axes.axvline(sizing.budget.requested / _GIB, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(named)), [name for name, _ in named])
    axes.set_ylim(len(named) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    request = sizing.request
    axes.set_xlim(0, total / _GIB * 1.005)
    share = f"gpu_memory_utilization {request.gpu_memory_utilization:g}"
    axes.set_xlabel(f"GiB of one {request.gpu.name} (dotted: {share})")
    return seen


def _draw_concurrency(axes: Axes, sizing: Sizing, named: list[tuple[str, Budget]]) -> None:
    """Draw how many sequences of a length fit. The vLLM setting `max_num_seqs` is the ceiling."""
    lengths = [length for length in contexts_of(sizing) if length <= sizing.request.max_model_len]
    colours = dict(zip((name for name, _ in named), (COLOURS["drafter"], COLOURS["target"]), strict=False))
    for (name, budget), above in zip(named, (False, True), strict=False):
        counts = [budget.sequences(length) for length in lengths]
        shown = [(length, count) for length, count in zip(lengths, counts, strict=True) if count]
        axes.plot(*zip(*shown, strict=True) if shown else ([], []), "o-", color=colours[name], markersize=4, label=name)
        for point in shown:
            axes.annotate(
                f"{point[1]:,}",
                point,
                xytext=(5 if above else -5, 3 if above else -11),
                textcoords="offset points",
                ha="left" if above else "right",
                fontsize=8,
            )
    limit = sizing.budget.max_num_seqs
    axes.axhline(limit, color=INK, linewidth=0.8, linestyle="--")
    axes.annotate(f"max_num_seqs {limit}", (lengths[-1], limit), xytext=(0, 3), textcoords="offset points", ha="right")
    axes.margins(x=0.06, y=0.12)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [_short(length) for length in lengths])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("sequences at once")
    if len(named) > 1:
        axes.legend(loc="lower left")


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"
