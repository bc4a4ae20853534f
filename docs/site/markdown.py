"""Markdown of facts: tables, code, links between generated pages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

from draftwise.knowledge.methods import all_methods

FOLDERS = {"finding": "findings", "release": "releases", "method": "methods"}


_NAME = re.compile(r"(?<![\w`])(?:--[a-z][\w-]*|\$?[\w./=]*\w_\w(?:[\w./=()-]*[\w)])?)")
"""A flag, or a word or path with an underscore: what is typed."""
_REPORT = re.compile(r"\b([\w-]+/[\w.-]+)#(\d+)\b")
_FILE = re.compile(r"^vLLM (\d[\w.]*), (vllm/[\w/.-]+\.py)(?=:|$)")


def plain(text: str) -> str:
    """Return a text of the facts as Markdown that shows it as it is; names that are typed become code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        pieces = ["\\`".join(pieces)]
    return "`".join(each if at % 2 else _mark(each) for at, each in enumerate(pieces))


def _mark(text: str) -> str:
    parts = _NAME.split(text)
    names = _NAME.findall(text)
    shown = [re.sub(r"([*_\[<])", r"\\\1", part) for part in parts]
    return shown[0] + "".join(f"`{name}`{part}" for name, part in zip(names, shown[1:], strict=True))


def source(text: str) -> str:
    """Return where a fact is from, with links to reports and to files of vLLM."""
    file = _FILE.match(text)
    if file:
        at, path = file.groups()
        return (
            f"[vLLM {at}, `{path}`](https://github.com/vllm-project/vllm/blob/v{at}/{path}){plain(text[file.end() :])}"
        )
    parts = _REPORT.split(text)
    links = (
        f"[{repository}#{number}](https://github.com/{repository}/issues/{number})"
        for repository, number in zip(parts[1::3], parts[2::3], strict=True)
    )
    return plain(parts[0]) + "".join(f"{link}{plain(part)}" for link, part in zip(links, parts[3::3], strict=True))


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


def slug(title: str) -> str:
    """Return the anchor of a heading, as code hosts spell it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title.strip().lower())).replace(" ", "-")
