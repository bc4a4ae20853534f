"""Markdown of facts: tables, code, links between generated pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

from draftwise.knowledge.methods import all_methods

FOLDERS = {"finding": "findings", "release": "releases", "method": "methods"}


def plain(text: str) -> str:
    """Return a text of the facts as Markdown that shows it as it is."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        pieces = ["\\`".join(pieces)]
    return "`".join(each if at % 2 else re.sub(r"([*_\[<])", r"\\\1", each) for at, each in enumerate(pieces))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; its cells are Markdown."""
    head = [*columns]
    lines = [head, ["---"] * len(head), *([*row] for row in rows)]
    cells = ([cell.replace("|", "&#124;").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def fence(text: str, language: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```"


def code_list(names: Iterable[str]) -> str:
    """Return names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def links(names: Collection[str], kind: Literal["finding", "release", "method"], up: str) -> str:
    """Return links to pages of one kind; aliases of methods have no page.

    Args:
        names: codes, releases or methods.
        kind: what they are.
        up: the way from the page to the folders of generated pages; `.` for a page of the same folder.
    """
    folder = "" if up == "." else f"{up}/{FOLDERS[kind]}/"
    known = [name for name in names if kind != "method" or name in all_methods()]
    return ", ".join(f"[`{name}`]({folder}{name}.md)" if name in known else f"`{name}`" for name in names)
