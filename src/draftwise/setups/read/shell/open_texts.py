"""Texts with unknown parts: a mark for each part, and the value that it has if no variable is set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from draftwise.knowledge.messages import refusal

MAX_CHARS = 1_000_000
"""Longest text that is read, before and after variables are put in."""

_FIRST = 0xF0000
_MOST = 60_000
_MARK = re.compile("[\U000f0000-\U000fffff]")


def check_length(texts: Iterable[str]) -> None:
    """Refuse texts that are together longer than `MAX_CHARS`.

    Raises:
        InvalidSetup: they are.
    """
    if sum(map(len, texts)) > MAX_CHARS:
        raise refusal("too-long", case="expanded", max_chars=MAX_CHARS)


def is_known(text: str) -> bool:
    """Say whether nothing of a text is open."""
    return _MARK.search(text) is None


def find_holes(text: str) -> list[str]:
    """Return the marks of what is open in a text."""
    return _MARK.findall(text)


def without_marks(text: str) -> str:
    """Return a text from outside, in which no character may stand for something open."""
    return _MARK.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of a text that the script does not tell. In texts one character of a private plane stands for it."""

    shown: str
    """The reference in the script, e.g. `$MODEL`."""
    names: tuple[str, ...]
    """What its value depends on, each with where that comes from."""
    assumed: str | None = None
    """Its value where none of these is set; None where that is not known either."""
    variable: str = ""
    """The variable whose value it is, whole; empty for what is computed of others."""
    splits: bool = False
    """Whether a shell takes it apart, so that it may be any number of words."""
    salt: tuple[int, ...] = ()
    """Tells apart what is computed at different times."""


@dataclass(frozen=True, slots=True)
class OpenText:
    """A text with marks, and what these stand for."""

    text: str
    holes: Holes


@dataclass(slots=True)
class Holes:
    """All that is open in one script."""

    known: list[Hole] = field(default_factory=list)
    marks: dict[Hole, str] = field(default_factory=dict)

    def mark(self, hole: Hole) -> str:
        """Return the character that stands for a hole.

        Raises:
            InvalidSetup: there are more of them than any script has.
        """
        mark = self.marks.get(hole)
        if mark is None:
            if len(self.known) == _MOST:
                raise refusal("too-long", case="expanded", max_chars=MAX_CHARS)
            mark = self.marks[hole] = chr(_FIRST + len(self.known))
            self.known.append(hole)
        return mark

    def __getitem__(self, mark: str) -> Hole:
        """Return what a character stands for."""
        return self.known[ord(mark) - _FIRST]

    def assume(self, text: str) -> str | None:
        """Return what a text is where nothing is set that it depends on; None where that is not known."""
        if any(self[mark].assumed is None for mark in find_holes(text)):
            return None
        return _MARK.sub(lambda found: self[found[0]].assumed or "", text)

    def guess(self, text: str) -> str | None:
        """Return what a text is where no variable of the caller is set; None where it hangs on something else."""
        parts = {mark: self[mark] for mark in find_holes(text)}
        if any(hole.assumed is None and not hole.variable for hole in parts.values()):
            return None
        return _MARK.sub(lambda found: parts[found[0]].assumed or "", text)

    def show(self, text: str) -> str:
        """Return a text as a reader knows it: with what is open as the script writes it."""
        return _MARK.sub(lambda found: self[found[0]].shown, text)

    def tell(self, text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return a text for the program that receives it, what of it is not known, and what was assumed for it."""
        unknown: dict[str, None] = {}
        assumed: dict[str, None] = {}

        def fill(found: re.Match[str]) -> str:
            hole = self[found[0]]
            (unknown if hole.assumed is None else assumed).update(dict.fromkeys(hole.names))
            return hole.shown if hole.assumed is None else hole.assumed

        return _MARK.sub(fill, text), tuple(unknown), tuple(assumed)

    def name(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return what texts depend on."""
        return tuple(dict.fromkeys(name for text in texts for mark in find_holes(text) for name in self[mark].names))


def bind(text: str, bound: Mapping[str, str]) -> str:
    """Return a text with what was found out of its open parts put in."""
    if not bound or is_known(text):
        return text
    for _ in range(4):
        text = _MARK.sub(lambda found: bound.get(found[0], found[0]), text)
    return text
