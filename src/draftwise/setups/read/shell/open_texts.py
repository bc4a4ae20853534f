"""Texts with unknown parts: a mark for each part, and its value if no variable is set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from draftwise.knowledge.messages import refusal

MAX_CHARS = 1_000_000
"""Maximum length of a text, before and after expansion."""
PER_COMMAND = 1_000
"""What a command costs, in values that are copied."""
_MAX_WORK = 20_000_000
"""How many values are copied while a text is followed."""

_FIRST = 0xF0000
_MOST = 60_000
_MARK = re.compile("[\U000f0000-\U000fffff]")


def check_length(chars: int) -> None:
    """Refuse texts that have more than `MAX_CHARS` in all.

    Raises:
        InvalidSetup: they have.
    """
    if chars > MAX_CHARS:
        raise refusal("too-long", case="expanded", max_chars=MAX_CHARS)


def check_work(values: int, line: int) -> None:
    """Refuse a text that takes too much work to follow; the refusal names the line.

    Raises:
        InvalidSetup: more than `_MAX_WORK` values were copied.
    """
    if values > _MAX_WORK:
        raise refusal("too-long", case="followed", line=line, max_work=_MAX_WORK)


def is_known(text: str) -> bool:
    """Return whether a text has no open parts."""
    return _MARK.search(text) is None


def find_holes(text: str) -> list[str]:
    """Return the marks of the open parts in a text."""
    return _MARK.findall(text)


def replace_marks(text: str, change: Callable[[str], str]) -> str:
    """Return a text with `change(mark)` in place of each mark."""
    return text.translate({ord(mark): change(mark) for mark in dict.fromkeys(find_holes(text))})


def without_marks(text: str) -> str:
    """Return an external text without characters that could be read as marks."""
    return _MARK.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class Hole:
    """An unknown part of a text, which a character of a private Unicode plane represents in texts."""

    shown: str
    """The reference in the script, e.g. `$MODEL`."""
    names: tuple[str, ...]
    """What its value depends on, each with its source."""
    assumed: str | None = None
    """Value if none of these is set; None if that is unknown too."""
    variable: str = ""
    """Variable whose whole value it is; empty if it is computed from others."""
    splits: bool = False
    """Whether a shell splits it, so that it may be any number of words."""
    salt: tuple[int, ...] = ()
    """Distinguishes values computed at different times."""


@dataclass(frozen=True, slots=True)
class OpenText:
    """A text with marks, and their meanings."""

    text: str
    holes: Holes


@dataclass(slots=True)
class Holes:
    """All open parts of one script."""

    known: list[Hole] = field(default_factory=list)
    marks: dict[Hole, str] = field(default_factory=dict)

    def mark(self, hole: Hole) -> str:
        """Return the character for a hole.

        Raises:
            InvalidSetup: there are too many holes.
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
        """Return a text's value if nothing that it depends on is set; None if unknown."""
        if any(self[mark].assumed is None for mark in find_holes(text)):
            return None
        return _MARK.sub(lambda found: self[found[0]].assumed or "", text)

    def guess(self, text: str) -> str | None:
        """Return a text's value if no variable of the caller is set; None if it depends on something else."""
        parts = {mark: self[mark] for mark in find_holes(text)}
        if any(hole.assumed is None and not hole.variable for hole in parts.values()):
            return None
        return _MARK.sub(lambda found: parts[found[0]].assumed or "", text)

    def show(self, text: str) -> str:
        """Return a text for readers, with open parts as in the script."""
        return _MARK.sub(lambda found: self[found[0]].shown, text)

    def tell(self, text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return (the text for the receiving program, its unknown parts, its assumptions)."""
        unknown: dict[str, None] = {}
        assumed: dict[str, None] = {}

        def fill(found: re.Match[str]) -> str:
            hole = self[found[0]]
            (unknown if hole.assumed is None else assumed).update(dict.fromkeys(hole.names))
            return hole.shown if hole.assumed is None else hole.assumed

        return _MARK.sub(fill, text), tuple(unknown), tuple(assumed)

    def name_blank(self, text: str) -> tuple[str, ...]:
        """Return the names of the parts that are empty if nothing is set."""
        return self.name([mark for mark in find_holes(text) if self[mark].assumed == ""])

    def name(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return what texts depend on."""
        return tuple(dict.fromkeys(name for text in texts for mark in find_holes(text) for name in self[mark].names))


def bind(text: str, bound: Mapping[str, str]) -> str:
    """Return a text with known values in place of open parts."""
    if not bound or is_known(text):
        return text
    for _ in range(4):
        text = _MARK.sub(lambda found: bound.get(found[0], found[0]), text)
    return text
