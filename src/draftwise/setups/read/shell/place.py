"""Where something stands, as findings say it: `compose.yaml:12 services.vllm.command[3] --speculative-config`."""

from __future__ import annotations

import re

from draftwise.setups.read.shell.words import Word

__all__ = ["get_place", "in_file"]

_LINE = re.compile(r"line (\d+)(?: |$)")


def get_place(word: Word, flag: str = "") -> str:
    """Return the place of a word: its line in the text, its path in a document, and its flag."""
    flag = flag or (word.text.partition("=")[0][:80] if word.text.startswith("-") else "")
    line = f"line {word.line}" if word.line else ""
    return " ".join(part for part in (line, word.place, flag) if part)


def in_file(where: str, name: str, *, one_line: bool = False) -> str:
    """Return a place whose `line 12` has become `NAME:12`; in a text of one line the number goes."""
    found = _LINE.match(where)
    if found is None:
        return where or name
    head = f"{name}:{found[1]} " if name else "" if one_line else found[0]
    return (head + where[found.end() :]).strip()
