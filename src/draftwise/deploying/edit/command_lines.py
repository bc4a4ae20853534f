"""Changes of commands that are written as text: units of systemd, scripts, commands in YAML that are no lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from draftwise.deploying.edit.changes import Change, Splice

__all__ = ["find_command_changes"]

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\["'](?:[^\\]|\\(?!["'](?:\s|$)).)*?\\["']|[^\s"'\\]+)+"""
_GAP = r"(?:[ \t]*\\\r?\n[ \t]*|[ \t]+)"
_FLAG = re.compile(
    rf"""(?P<gap>{_GAP}|^)["']?(?:--speculative[-_.][\w.-]+|-sc(?=[=\s])|--num[-_]speculative[-_]tokens)"""
    rf"(?:=|{_GAP}(?!-)){_VALUE}",
    re.MULTILINE,
)
_QUOTED_FLAG = re.compile(rf"""(?P<gap>{_GAP})(?:"--speculative(?:[^"\\]|\\.)*"|'--speculative[^']*')""")
_LIKELY = re.compile(r"vllm|--\w|ExecStart")
_CONTINUED = re.compile(r"[ \t]*\\\r?$")


def find_command_changes(text: str, words: Sequence[str]) -> Iterator[Change]:
    """Yield changes that say these words in the place of what a command says of speculation, the likeliest first."""
    found = [*_find(_QUOTED_FLAG, text)] or [*_find(_FLAG, text)]
    if found or not words:
        for quoted in _list_quoted(words):
            added = [found[0]["gap"] + word for word in quoted] if found else []
            yield tuple(
                Splice(match.start(), match.end(), "".join(added) if number == 0 else "")
                for number, match in enumerate(found)
            )
        return
    lines = [each for each in re.finditer(r"[^\n]+", text) if _LIKELY.search(each[0])]
    # Behind a line that goes on, the words take a line of their own and every other one stays as it is.
    for line in sorted(lines, key=lambda each: (_CONTINUED.search(each[0]) is None, -each.start())):
        for quoted in _list_quoted(words):
            yield from _append(line, quoted)


def _find(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the flags of a text, without those of its comments."""
    for match in pattern.finditer(text):
        place = match.end("gap")
        if not text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("#"):
            yield match


def _list_quoted(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words as shells and systemd read them, and as they stand inside quotes of YAML or a shell."""
    yield [f"'{word}'" for word in words]
    yield ["'" + word.replace("\\", "\\\\").replace('"', '\\"') + "'" for word in words]


def _append(line: re.Match[str], quoted: Sequence[str]) -> Iterator[Change]:
    """Yield the words as lines of their own behind a line that goes on, else at its end, perhaps before a quote."""
    text = line[0]
    continued = _CONTINUED.search(text)
    if continued is not None:
        indent = text[: len(text) - len(text.lstrip())] or "  "
        added = "".join(f"{indent}{word}{continued[0]}\n" for word in quoted)
        yield (Splice(line.end() + 1, line.end() + 1, added),)
        return
    end = line.start() + len(text.rstrip())
    for place in (end, end - 1):
        yield (Splice(place, place, "".join(f" {word}" for word in quoted)),)
