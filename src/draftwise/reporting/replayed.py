"""The page of a replay: tokens per step by setting, k and group, acceptance by position, and request by request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwise.core import Acceptance, Profile
from draftwise.replaying.anchors import Anchors
from draftwise.reporting.appearance import NO_PLOTS, Plot, can_draw
from draftwise.reporting.page import PageTable, TableCell, make_row, open_templates
from draftwise.statistics import CONFIDENCE

PAGE = "report.html"
_FOLDED = 16
_SHOWN_KS = (1, 2, 3, 5, 7)
_POSITIONS = 8


def render_replay(profile: Profile, anchors: Sequence[Anchors]) -> str:
    """Return the page of a profile as one HTML file without scripts or other files."""
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
            no_plots=NO_PLOTS,
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
        found = (entry.by_k[k].tokens_per_step if k in entry.by_k else None for k in shown)
        means = (TableCell(text=f"{each.value:.2f}", small=each.span) if each else "" for each in found)
        spread = " ".join(f"{each:.2f}" for each in best.per_request)
        cells = (f"{entry.requests:,}", *means, spread, f"{best.drafted / best.steps:.1f}")
        rows.append(make_row(_label(entry), *cells, group=_place(entry)))
    columns = ("setting", "requests", *(f"k={k}" for k in shown), "request P10/50/90", "drafted/step")
    return PageTable(caption="Tokens per step, by setting and group", columns=columns, rows=tuple(rows))


def _tabulate_positions(entries: Sequence[Acceptance]) -> PageTable:
    size = min(_POSITIONS, max(max(entry.by_k) for entry in entries))
    rows = []
    for entry in entries:
        rates = _by_position(entry)
        shown = [f"{100 * rate:.0f} %" if rate is not None else "" for rate in rates[:size]]
        rows.append(make_row(_label(entry), *shown, *[""] * (size - len(shown)), group=_place(entry)))
    columns = ("setting", *(str(place + 1) for place in range(size)))
    return PageTable(caption="Acceptance by position, with the longest drafts", columns=columns, rows=tuple(rows))


def _by_position(entry: Acceptance) -> list[float | None]:
    found = entry.by_k[max(entry.by_k)]
    pairs = zip(found.accepted_per_pos, found.drafted_per_pos, strict=True)
    return [accepted / drafted if drafted else None for accepted, drafted in pairs]


def _draw(entries: Sequence[Acceptance], anchors: Sequence[Anchors]) -> Mapping[str, Plot]:
    if not can_draw():
        return {}
    from draftwise.reporting.plots.replay_plots import draw_replay

    return draw_replay(entries, anchors, _label)


def _label(entry: Acceptance) -> str:
    return replace(entry.candidate, num_speculative_tokens=None).label


def _place(entry: Acceptance) -> str:
    return f"T={entry.temperature:g}" + (f" · {entry.group}" if entry.group else "")
