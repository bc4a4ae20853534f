"""The arguments of a program in a text, and texts that no shell reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from draftwise.knowledge.messages import refusal
from draftwise.setups.read.shell.open_texts import MAX_CHARS, OpenText, check_length

__all__ = ["MAX_CHARS", "Mistake", "Word", "check_length", "find_meant_json", "split_words"]

Mistake = Literal["", "unquoted-json", "json-in-double-quotes", "split-by-systemd"]

_PIECE = re.compile(
    r"""(?P<space>\s+)|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<open>['"])|\\(?P<escaped>.?)"""
    r"""|(?P<plain>[^\s'"\\{]+|\{)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\$`\n])')
_UNQUOTED_JSON = re.compile(r"""\{\s*["'\u201c\u201d\u2018\u2019]?\w+["'\u201c\u201d\u2018\u2019]?\s*:""")
_JSON_IN_DOUBLE_QUOTES = re.compile(r'"\{\s*"\w')
_JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')
_MAX_JSON, _MAX_DEPTH = 20_000, 100
"""Longest text in which the end of JSON is looked for, and the most braces that are open in it."""


@dataclass(frozen=True, slots=True)
class Word:
    """One argument as the program receives it."""

    text: str
    line: int = 0
    """Line in the file or text, from 1; 0 if unknown."""
    place: str = ""
    """Path in a YAML document, e.g. `services.vllm.command[3]`."""
    mistake: Mistake = ""
    """Mistake because of which a shell would read something else; `text` is what was meant."""
    unknown: tuple[str, ...] = ()
    """Unknown values that it depends on, each with its source."""
    assumed: tuple[str, ...] = ()
    """Variables assumed to be unset, so that their defaults count, each with the source of a value."""
    blank: tuple[str, ...] = field(default=(), compare=False)
    """Those of `assumed` whose default is empty: whoever gives it as a value expects a caller who sets them."""
    source: OpenText | None = field(default=None, compare=False, repr=False)
    """The word with its open parts, as a nested shell reads it."""

    def where(self, flag: str = "") -> str:
        """Return its place for findings: `line 12 services.vllm.command[3] --seed`.

        Args:
            flag: flag that it belongs to; empty if it is a flag itself.
        """
        flag = flag or (self.text.partition("=")[0][:80] if self.text.startswith("-") else "")
        line = f"line {self.line}" if self.line else ""
        return " ".join(part for part in (line, self.place, flag) if part)


def split_words(text: str, *, line: int = 1, place: str = "") -> tuple[Word, ...]:
    """Return the words of a text that no shell reads: quotes and backslashes count, operators and variables do not.

    Raises:
        InvalidSetup: a quote is never closed, or the text is longer than `MAX_CHARS`.
    """
    check_length(len(text))
    return tuple(_split(text.replace("\r\n", "\n"), line, place))


def find_meant_json(text: str, pos: int) -> tuple[str, int, Mistake] | None:
    """Return (the JSON as meant, its end, the mistake) for JSON that a shell would split; None without any."""
    mistake: Mistake = "unquoted-json"
    begin = pos
    if not _UNQUOTED_JSON.match(text, pos):
        mistake, begin = "json-in-double-quotes", pos + 1
        if not _JSON_IN_DOUBLE_QUOTES.match(text, pos):
            return None
    depth = 0
    for piece in _JSON_PIECE.finditer(text, begin, begin + _MAX_JSON):
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if depth > _MAX_DEPTH:
            return None
        if depth == 0 and piece[0] == "}":
            end = piece.end()
            if mistake == "unquoted-json":
                return text[begin:end], end, mistake
            return (text[begin:end], end + 1, mistake) if text[end : end + 1] == '"' else None
    return None


def _split(text: str, line: int, place: str) -> Iterator[Word]:
    parts: list[str] | None = None
    began, pos = line, 0
    while pos < len(text):
        found = _PIECE.match(text, pos)
        if found is None:
            return
        begins = parts is None or (bool(parts) and parts[-1].endswith("="))
        meant = find_meant_json(text, pos) if begins and text[pos] in '{"' else None
        if meant is not None:
            yield Word("".join([*(parts or ()), meant[0]]), began if parts else line, place, meant[2])
            line += text.count("\n", pos, meant[1])
            parts, pos = None, meant[1]
            continue
        kind = found.lastgroup or "plain"
        if kind == "space":
            if parts is not None:
                yield Word("".join(parts), began, place)
            parts = None
        elif kind == "open":
            raise refusal("unclosed-quote", quote=found[0], line=line)
        elif not (kind == "escaped" and found["escaped"] == "\n"):
            if parts is None:
                parts, began = [], line
            content = found[kind]
            if kind == "double":
                content = _ESCAPED.sub(lambda each: each[1].strip("\n"), content)
            parts.append(content or ("\\" if kind == "escaped" else ""))
        line += found[0].count("\n")
        pos = found.end()
    if parts is not None:
        yield Word("".join(parts), began, place)
