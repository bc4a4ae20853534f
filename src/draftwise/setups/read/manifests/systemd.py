"""systemd units: the server that ExecStart starts, with the variables of Environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from draftwise.setups.read.shell.launch import Launch, find_launch
from draftwise.setups.read.shell.words import check_length, split_words

__all__ = ["find_units", "is_unit"]

_SECTION = re.compile(r"^\[Service\]\s*$", re.MULTILINE)
_SETTING = re.compile(r"([A-Za-z]+)\s*=\s*(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")


def is_unit(text: str) -> bool:
    """Say whether a text is a unit file of a service."""
    return _SECTION.search(text) is not None


def find_units(text: str) -> Iterator[Launch]:
    """Yield the servers of a unit file.

    Raises:
        InvalidSetup: a quote is never closed.
    """
    env: dict[str, str] = {}
    for line, setting in _settings(text.replace("\r\n", "\n")):
        match = _SETTING.fullmatch(setting)
        if match is None:
            continue
        value = match[2].replace("%%", "%")
        if match[1] == "Environment":
            pairs = (word.text.partition("=") for word in split_words(value, line=line))
            env |= {name: text for name, _, text in pairs if name}
        elif match[1] == "ExecStart":
            launch = find_launch(split_words(_fill_in(value.lstrip("-@:+!"), env), line=line))
            if launch is not None:
                yield replace(launch, env=env | dict(launch.env), where=f"line {line} ExecStart")


def _settings(text: str) -> Iterator[tuple[int, str]]:
    """Yield settings with their first line; a backslash at the end goes on in the next line."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not parts:
            start = number
            if line.lstrip().startswith(("#", ";")):
                continue
        if line.endswith("\\"):
            parts.append(line[:-1] + " ")
            continue
        yield start, "".join([*parts, line]).strip()
        parts = []
    if parts:
        yield start, "".join(parts).strip()


def _fill_in(text: str, env: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1] or match[2], match[0])

    check_length(env.get(each[0] or each[1], "") for each in _VARIABLE.findall(text))
    return _VARIABLE.sub(value, text)
