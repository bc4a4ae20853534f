"""Parses a starting vLLM's log: current phase, resolved settings, and the cause of a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any

from draftwise.knowledge.log_lines import read_log_facts

_FIELD = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[^,)]+)")
_RENAMED = {"num_spec_tokens": "num_speculative_tokens"}
"""Names of `SpeculativeConfig.__repr__` -> keys of the config."""
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b|[\w.]+Error\w*|Exception)(?:: |$)")
_USAGE = re.compile(r"^[\w. -]+: error: (.+)")
_MOST_DETAIL = 3
"""Number of lines of an exception's message to keep."""
_LONGEST = 400
"""Maximum characters of such a line."""


class StartupLog:
    """State of a vLLM start, from its log so far.

    Args:
        now: start of the process, in seconds on any clock.
    """

    def __init__(self, now: float) -> None:
        self.began: dict[str, float] = {"importing vLLM": now}
        """When each phase began; a phase that comes back (a drafter is compiled too) keeps its first beginning."""
        self.values: dict[str, Any] = {}
        self._progress = ""

    def take(self, lines: Iterable[str], now: float) -> None:
        """Process lines that arrived by `now`."""
        facts = read_log_facts()
        for line in lines:
            for mark in facts.values:
                if found := mark.pattern.search(line):
                    text = next(filter(None, found.groups()), "")
                    self.values[mark.name] = _READ[mark.kind](text)
            for mark in facts.phases:
                if mark.name not in self.began and mark.pattern.search(line):
                    self.began[mark.name] = now
                    self._progress = ""
            if percent := facts.progress.findall(line):
                self._progress = f" {percent[-1]} %"

    @property
    def is_ready(self) -> bool:
        """Whether the log says that the server answers requests."""
        return read_log_facts().phases[-1].name in self.began

    def doing(self, now: float) -> str:
        """Return the current phase and its duration."""
        phase, began = list(self.began.items())[-1]
        return f"{phase}{self._progress} ({now - began:.0f} s)"

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each completed phase."""
        return {name: round(after - began, 1) for (name, began), (_, after) in pairwise(self.began.items())}


def find_root_cause(lines: Sequence[str]) -> str | None:
    """Return the first exception, a worker's or the engine's, not the API server's that waited for it.

    Includes errors of the argument parser. None if the log has no error.
    """
    facts = read_log_facts()
    texts = [facts.prefix.sub("", line, count=1) for line in lines]
    for text in texts:
        if usage := _USAGE.match(text):
            return usage[1]
    found = [number for number, text in enumerate(texts) if _ERROR.match(text)]
    if not found:
        return None
    causes = [number for number in found if not facts.consequences.search(texts[number])]
    if not causes and (native := next(filter(facts.native.search, texts), "")):
        return native.strip()[:_LONGEST]
    return _with_detail(texts, (causes or found)[0])


def is_port_taken(lines: Iterable[str]) -> bool:
    """Return whether the server's port was taken."""
    return any(read_log_facts().port_taken.search(line) for line in lines)


def find_start_s(lines: Sequence[str]) -> float | None:
    """Return the seconds from a log's first line to the line before it is ready; None if it never is.

    Lines have no year: a line earlier than the first belongs to the next year. Time before the first line, such as
    importing vLLM, is not included.
    """
    facts = read_log_facts()
    ready = facts.phases[-1].pattern
    before = list(takewhile(lambda line: not ready.search(line), lines))
    stamps = [found[1] for line in before if (found := facts.stamp.search(line))]
    if len(before) == len(lines) or not stamps:
        return None
    first, last = (datetime.strptime(f"2000-{stamp}", "%Y-%m-%d %H:%M:%S") for stamp in (stamps[0], stamps[-1]))
    year = timedelta(days=366 if last < first else 0)
    return (last + year - first).total_seconds()


def _with_detail(texts: Sequence[str], number: int) -> str:
    """Return an exception's message; pydantic, for one, says what is wrong on the lines after the first."""
    message = [texts[number]]
    for text in texts[number + 1 : number + 1 + _MOST_DETAIL]:
        if not text.strip() or text.lstrip().startswith(("For further information", "Traceback", "Process ")):
            break
        if _ERROR.match(text) or not (text.startswith(" ") or message[0].endswith("Config")):
            break
        message.append(text.strip())
    return "\n  ".join(line[:_LONGEST] for line in message)


def _read_number(text: str) -> float | int:
    number = float(text.replace(",", ""))
    return int(number) if number.is_integer() else number


def _read_config(text: str) -> dict[str, Any]:
    """Return the keys of `SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)`; none for `None`."""
    config: dict[str, Any] = {}
    for key, value in _FIELD.findall(text):
        bare = value.strip("'\"")
        if value != "None":
            config[_RENAMED.get(key, key)] = int(bare) if bare.isdigit() else bare
    return config


_READ: Mapping[str, Callable[[str], Any]] = {"text": str, "number": _read_number, "config": _read_config}
