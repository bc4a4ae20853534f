"""Natural texts of a wanted length, put together from whole functions or sentences; and noise, for load alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.workloads.lengths import Tokens

__all__ = ["RANDOM", "SOURCES", "TextSource", "find_source"]

RANDOM = "random"
SOURCES = ("code", "prose", RANDOM)
_OPENINGS = {"code": "# module_{:05d}.py\n\n\n", "prose": "Section {}\n\n"}
"""First line of every text, with its number: no two share a prefix by accident."""
_SHORTEST_OPENED = 24
"""Tokens below which a text has no such line; it would be the whole of it."""


class TextSource:
    """Makes texts of a wanted number of tokens.

    Args:
        name: for descriptions.
        units: pieces that make sense alone; a text is a random order of them, and ends within one, so that there is
            something to go on with.
        joint: what stands between two units.
        opening: first line; `{}` becomes the number of the text.
        tokens: how lengths are counted.
    """

    def __init__(self, name: str, units: Sequence[str], *, joint: str, opening: str, tokens: Tokens) -> None:
        self.name = name
        self._units = units
        self._lengths = [max(1, tokens.count(unit)) for unit in units]
        self._joint, self._opening, self._tokens = joint, opening, tokens

    @property
    def is_random(self) -> bool:
        """Whether the texts are noise, which no drafter can be judged by."""
        return self.name == RANDOM

    @property
    def note(self) -> str:
        """What the texts are, in words."""
        if self.is_random:
            return "words drawn at random"
        return f"texts recombined from {self.name}"

    def text(self, length: int, number: int, rng: random.Random) -> str:
        """Return a text of `length` tokens: equal numbers and equal states of `rng` give equal texts."""
        parts = [self._opening.format(number)] if self._opening and length >= _SHORTEST_OPENED else []
        # The joints make the text a little longer than its units, which the cut takes off.
        missing = length + 1
        while missing > 0:
            order = rng.sample(range(len(self._units)), len(self._units))
            for place in order:
                parts.append(self._units[place] + self._joint)
                missing -= self._lengths[place]
                if missing <= 0:
                    break
        return self.cut("".join(parts), length)

    def cut(self, text: str, length: int) -> str:
        """Return the beginning of a text that has `length` tokens."""
        return self._tokens.cut(text, length)


def find_source(name: str, tokens: Tokens) -> TextSource:
    """Return the source of a name in `SOURCES`, or one that recombines the paragraphs of a text file.

    Raises:
        InvalidSetup: there is none, or the file holds no text.
    """
    if name == "code":
        units, joint = _functions(), "\n\n\n"
    elif name == "prose":
        units, joint = _passages(), "\n\n"
    elif name == RANDOM:
        units, joint = _words(), " "
    else:
        units, joint = _paragraphs(Path(name)), "\n\n"
    return TextSource(name, units, joint=joint, opening=_OPENINGS.get(name, ""), tokens=tokens)


def _lines(name: str) -> list[dict[str, Any]]:
    text = (files("draftwise.workloads") / "bundled" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _functions() -> list[str]:
    """Return the whole functions among the bundled texts: those that the rewriting tasks hand over."""
    messages = [message["content"] for row in _lines("rewrite") for message in row["messages"]]
    functions = {text.partition("\n\n")[2].strip("\n") for text in messages}
    return sorted(text for text in functions if text.startswith(("def ", "class ")))


def _passages() -> list[str]:
    """Return the bundled passages, each cut back to where its last whole sentence or line ends."""
    prompts = [row["prompt"] for row in _lines("prose")]
    ends = [max(text.rfind(".\n"), text.rfind(". "), text.rfind("\n\n")) + 1 for text in prompts]
    return sorted({text[:end].rstrip() for text, end in zip(prompts, ends, strict=True) if end > 1})


def _words() -> list[str]:
    return sorted({word for text in (*_functions(), *_passages()) for word in re.findall(r"[A-Za-z]{2,}", text)})


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetup.because(
            "unknown-source",
            f"source={path} is neither {', '.join(SOURCES)} nor a readable text file ({error}).",
            where=f"source={path}",
        ) from None
    units = sorted({part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()})
    if not units:
        raise InvalidSetup.because("empty-source", f"source={path} holds no text.", where=f"source={path}")
    return units
