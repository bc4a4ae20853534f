"""Diagnoses in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import expm1

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._findings import MARKS
from draftwise.core import Diagnosis


def render_diagnoses(diagnoses: Iterable[Diagnosis]) -> RenderableType:
    """Return what is wrong, what costs most first: the message, what it rests on, what to do, and what it may be."""
    found = list(diagnoses)
    follow = {each.code: [other.code for other in found if other.follows_from == each.code] for each in found}
    return Group(*(line for each in found if not each.follows_from for line in _list_lines(each, follow[each.code])))


def _list_lines(diagnosis: Diagnosis, follow: Sequence[str]) -> Iterator[RenderableType]:
    mark, style = MARKS[diagnosis.severity]
    head = Text.assemble((f"{mark} {diagnosis.code}", style), (f"  {diagnosis.where}", "dim"))
    if diagnosis.loss:
        head.append(f"  costs {expm1(diagnosis.loss):.0%} more time per token", "bold")
    yield head
    details = [(diagnosis.message, ""), ("; ".join(diagnosis.evidence), "dim"), (f"fix: {diagnosis.fix}", "")]
    if follow:
        details.append((f"consequences: {', '.join(follow)}", "dim"))
    if diagnosis.candidates:
        tells = f". To narrow it down, run: {diagnosis.settles}" if diagnosis.settles else ""
        details.append((f"possible causes: {', '.join(diagnosis.candidates)}{tells}", "dim"))
    yield from (Padding(Text(text, style), (0, 0, 0, 4), expand=False) for text, style in details if text)
