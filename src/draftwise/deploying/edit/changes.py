"""A change of a text: stretches of it and what is put in their places."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import SpecConfig

__all__ = ["Change", "Splice", "apply_change", "find_flags", "list_spellings", "start_lines"]

_FLAG = re.compile(r"--?(?:speculative[-_.]|spec[-_]|sc(?:\.|=|$)|num[-_]speculative[-_]tokens)")
"""How flags begin that make a server speculate, those of earlier releases among them."""
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Splice:
    """What is put in the place of a stretch."""

    start: int
    end: int
    text: str = ""


Change = tuple[Splice, ...]


def apply_change(text: str, change: Change) -> str:
    """Return a text with a change made."""
    for splice in sorted(change, key=lambda each: each.start, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def start_lines(text: str) -> list[int]:
    """Return where each line begins, and behind them where the text ends."""
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    return [*starts, len(text)]


def find_flags(words: Sequence[str]) -> Iterator[int]:
    """Yield the positions of flags that make a server speculate, with those of the values that follow them."""
    takes_value = False
    for index, word in enumerate(words):
        if _FLAG.match(word):
            yield index
            takes_value = "=" not in word
        elif takes_value and not word.startswith("--"):
            yield index
            takes_value = False
        else:
            takes_value = False


def list_spellings(spec: SpecConfig | None) -> Iterator[list[str]]:
    """Yield the words that say a config, the best first: as JSON, then key by key, for what a shell reads again."""
    if spec is None:
        yield []
        return
    config = spec.to_dict()
    yield [f"--speculative-config={json.dumps(config, separators=(',', ':'))}"]
    if all(isinstance(value, str | int | float) for value in config.values()):
        texts = {key: json.dumps(value) if isinstance(value, bool) else str(value) for key, value in config.items()}
        yield [f"--speculative-config.{key}={text}" for key, text in texts.items()]
