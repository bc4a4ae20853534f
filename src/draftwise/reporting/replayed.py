"""The page of a replay: tokens per step by setting, k and group, acceptance by position, and request by request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftwise.core import Acceptance, Profile
from draftwise.replaying.acceptance_profile import tokens_per_step
from draftwise.replaying.anchors import Anchors
from draftwise.reporting.page import PageTable, TableCell, TableRow, open_templates
from draftwise.reporting.plots.plot_data import draw_panels
from draftwise.reporting.svg import PALETTE, to_svg
from draftwise.statistics import CONFIDENCE

__all__ = ["PAGE", "render_replay"]

PAGE = "report.html"
_FOLDED = 16
_SHOWN_KS = (1, 2, 3, 5, 7)
_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class _Plot:
    svg: str
    caption: str


def render_replay(profile: Profile, anchors: Sequence[Anchors]) -> str:
    """Return the page of a profile as one HTML file that needs no other and no script.

    Args:
        profile: what was found.
        anchors: what it was found from, for the requests one by one.
    """
    whole = [entry for entry in profile.entries if entry.group is None]
    return (
        open_templates()
        .get_template("replay.html.j2")
        .render(
            profile=profile,
            headline=_headline(whole),
            settings=_tabulate_settings(profile.entries),
            positions=_tabulate_positions(profile.entries),
            plots=_draw(whole, anchors),
            confidence=CONFIDENCE,
            folded=_FOLDED,
            colours={},
        )
    )


def _headline(entries: Sequence[Acceptance]) -> str:
    """Return the setting that emits the most, of each temperature."""
    parts = []
    for temperature in sorted({entry.temperature for entry in entries}):
        found = [entry for entry in entries if entry.temperature == temperature]
        best = max(found, key=lambda entry: entry.by_k[max(entry.by_k)].tokens_per_step.value)
        value = best.by_k[max(best.by_k)].tokens_per_step.value
        parts.append(f"{value:.2f} tokens per step with {_label(best)} k={max(best.by_k)} at T={temperature:g}")
    return f"{'; '.join(parts)}."


def _tabulate_settings(entries: Sequence[Acceptance]) -> PageTable:
    shown = sorted({k for entry in entries for k in (*_SHOWN_KS, entry.kmax) if k in entry.by_k})
    rows = []
    for entry in entries:
        best = entry.by_k[max(entry.by_k)]
        cells = [TableCell(text=f"{entry.requests:,}")]
        for k in shown:
            found = entry.by_k[k].tokens_per_step if k in entry.by_k else None
            cells.append(TableCell(text=f"{found.value:.2f}", small=found.span) if found else TableCell(text=""))
        cells.append(TableCell(text=" ".join(f"{each:.2f}" for each in best.per_request)))
        cells.append(TableCell(text=f"{best.drafted / best.steps:.1f}"))
        rows.append(TableRow(group=_place(entry), name=_label(entry), cells=tuple(cells)))
    columns = ("setting", "requests", *(f"k={k}" for k in shown), "request P10/50/90", "drafted/step")
    return PageTable(caption="Tokens per step, by setting and group", columns=columns, rows=tuple(rows))


def _tabulate_positions(entries: Sequence[Acceptance]) -> PageTable:
    size = min(_POSITIONS, max(max(entry.by_k) for entry in entries))
    rows = []
    for entry in entries:
        rates = _by_position(entry)
        shown = [f"{100 * rate:.0f} %" if rate is not None else "" for rate in rates[:size]]
        cells = tuple(TableCell(text=text) for text in (*shown, *[""] * (size - len(shown))))
        rows.append(TableRow(group=_place(entry), name=_label(entry), cells=cells))
    columns = ("setting", *(str(place + 1) for place in range(size)))
    return PageTable(caption="Acceptance by position, with the longest drafts", columns=columns, rows=tuple(rows))


def _by_position(entry: Acceptance) -> list[float | None]:
    found = entry.by_k[max(entry.by_k)]
    pairs = zip(found.accepted_per_pos, found.drafted_per_pos, strict=True)
    return [accepted / drafted if drafted else None for accepted, drafted in pairs]


def _draw(entries: Sequence[Acceptance], anchors: Sequence[Anchors]) -> Mapping[str, _Plot]:
    temperatures = sorted({entry.temperature for entry in entries})
    titles = [f"T={temperature:g}" for temperature in temperatures]
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(map(_label, entries)))}

    def by_k(axes: Axes, index: int) -> None:
        for entry in (each for each in entries if each.temperature == temperatures[index]):
            found = [entry.by_k[k].tokens_per_step for k in entry.by_k]
            colour = colours[_label(entry)]
            axes.plot(list(entry.by_k), [each.value for each in found], color=colour, marker="o", markersize=3,
                      label=_label(entry))  # fmt: skip
            low, high = [each.low for each in found], [each.high for each in found]
            axes.fill_between(list(entry.by_k), low, high, color=colour, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    def by_request(axes: Axes, index: int) -> None:
        for each in (found for found in anchors if found.temperature == temperatures[index]):
            values = np.sort(tokens_per_step(each, each.ks[-1]))
            label = replace(each.candidate, num_speculative_tokens=None).label
            axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color=colours[label],
                      label=label)  # fmt: skip
        axes.set_ylim(0, 1)

    def k_figure() -> Figure:
        return draw_panels(titles, by_k, xlabel="k, draft tokens a step at most", ylabel="tokens per step")

    def request_figure() -> Figure:
        return draw_panels(titles, by_request, xlabel="tokens per step of a request", ylabel="share of requests below")

    about = "Tokens per step by draft length; the band is the interval over requests."
    spread = "Requests one by one, with the longest drafts: half of them lie left of 0.5."
    by_k_svg = to_svg(k_figure, "by k", title="Tokens per step by k", about=about)
    by_request_svg = to_svg(request_figure, "by request", title="Tokens per step by request", about=spread)
    return {"k": _Plot(by_k_svg, about), "requests": _Plot(by_request_svg, spread)}


def _label(entry: Acceptance) -> str:
    return replace(entry.candidate, num_speculative_tokens=None).label


def _place(entry: Acceptance) -> str:
    return f"T={entry.temperature:g}" + (f" · {entry.group}" if entry.group else "")
