"""Recorded traffic without texts: arrival times and lengths, filled with real text cut to these lengths."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Prompt
from draftwise.knowledge.stored import read_rows
from draftwise.workloads.text_lengths import TextSource
from draftwise.workloads.workload_rows import Faults, FileRow, from_begin, to_seconds

MAX_CHARS = 50_000_000
"""Maximum characters of text for one trace: 50 MB, some 12 million tokens, hours of prefill on most servers."""
_BLOCK = 512
"""Tokens that one of Mooncake's `hash_ids` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """The columns of a published trace format."""

    name: str
    time: tuple[str, ...]
    """Names of the time column, in order of preference."""
    prompt: tuple[str, ...]
    output: tuple[str, ...]
    source: str
    per_s: float = 1.0
    """Clock units per second, if times are numbers since the trace's start."""


FORMATS = tuple(TraceFormat(**row) for row in read_rows("trace_formats"))


def find_format(row: Any) -> TraceFormat | None:
    """Return the format whose columns a row has; None if it is not a trace."""
    if not isinstance(row, Mapping) or any(row.get(key) for key in ("prompt", "messages")):
        return None
    groups = ((each, (each.time, each.prompt, each.output)) for each in FORMATS)
    return next((each for each, columns in groups if all(_column(row, names) for names in columns)), None)


def _column(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in row), None)


@dataclass(frozen=True, slots=True)
class _Request:
    where: str
    time: float
    prompt: int
    output: int
    blocks: tuple[int, ...]


class TraceReader:
    """Makes prompts from the rows of a trace.

    Args:
        source: text that fills the lengths.
        bucket: [low, high) of the recorded prompt lengths to keep.
        seed: seed of the texts.
        faults: collects faults.
    """

    def __init__(self, source: TextSource, *, bucket: tuple[int, int | None] | None, seed: int, faults: Faults) -> None:
        self._source, self._bucket, self._seed, self._faults = source, bucket, seed, faults
        self.notes: list[str] = []

    def read(self, rows: Sequence[FileRow], file: str, *, most: int | None = None) -> tuple[Prompt, ...]:
        """Return at most `most` prompts in order of arrival, whose answers get their recorded lengths."""
        kind = find_format(rows[0].value) if rows else None
        if kind is None:
            where = rows[0].where if rows else file
            self._faults.add("not-a-trace", f"{where} is no row of a known trace.", where, _columns_text())
            return ()
        self.notes.append(kind.name)
        requests = [each for row in rows if (each := self._parse(row, kind)) is not None and self._is_wanted(each)]
        requests.sort(key=lambda each: each.time)
        return self._fill(requests[:most])

    def _is_wanted(self, request: _Request) -> bool:
        if not request.output or not request.prompt:
            self._faults.leave_out("without tokens (failed)", request.where)
            return False
        low, high = self._bucket or (0, None)
        if request.prompt < low or (high is not None and request.prompt >= high):
            self._faults.leave_out("with prompts of other lengths", request.where)
            return False
        return True

    def _parse(self, row: FileRow, kind: TraceFormat) -> _Request | None:
        value = row.value if isinstance(row.value, Mapping) else {}
        faults: list[str] = []
        time = to_seconds(self._value(value, kind.time, faults), kind.per_s)
        if time is None and not faults:
            faults.append(f"has {value.get(kind.time[0])!r} as {kind.time[0]}, which is no time.")
        lengths = [_whole(self._value(value, names, faults), names[0], faults) for names in (kind.prompt, kind.output)]
        blocks = value.get("hash_ids") or ()
        if not isinstance(blocks, list | tuple) or not all(isinstance(each, int) for each in blocks):
            faults.append("has hash_ids that are no list of whole numbers.")
        if faults or time is None:
            fix = f"A row of this trace has {', '.join(_names(kind))}."
            for fault in faults:
                self._faults.add("bad-row", f"{row.where} {fault}", row.where, fix, reason="without a time or lengths")
            return None
        return _Request(row.where, time, lengths[0], lengths[1], tuple(blocks))

    def _value(self, row: Mapping[str, Any], names: tuple[str, ...], faults: list[str]) -> Any:
        name = _column(row, names)
        if name is None or row[name] is None:
            faults.append(f"has no {names[0]}.")
            return None
        return row[name]

    def _fill(self, requests: Sequence[_Request]) -> tuple[Prompt, ...]:
        prompts: list[Prompt] = []
        chars = 0
        arrivals = from_begin([request.time for request in requests])
        for number, (request, arrival) in enumerate(zip(requests, arrivals, strict=True)):
            text = self._text(number, request)
            chars += len(text)
            if chars > MAX_CHARS and prompts:
                self.notes.append(f"cut after {len(prompts)} requests, whose texts have {MAX_CHARS // 10**6} MB")
                break
            prompts.append(
                Prompt(id=request.where, text=text, max_tokens=request.output, arrival_s=arrival, ignore_eos=True)
            )
        if any(request.blocks for request in requests):
            self.notes.append("equal hash_ids are equal texts")
        return tuple(prompts)

    def _text(self, number: int, request: _Request) -> str:
        if not request.blocks:
            return self._source.text(request.prompt, number, random.Random(f"{self._seed}-{number}"))
        left, parts = request.prompt, []
        for block in request.blocks:
            # Also the last, partial block is cut from its whole text, so that a longer prompt goes on from it.
            text = self._source.text(_BLOCK, block, random.Random(f"{self._seed}-block-{block}"))
            parts.append(text if left >= _BLOCK else self._source.cut(text, max(1, left)))
            left -= _BLOCK
        if left > 0:
            parts.append(self._source.text(left, number, random.Random(f"{self._seed}-{number}")))
        return "".join(parts)


def _whole(value: Any, name: str, faults: list[str]) -> int:
    if value is None:
        return 0
    try:
        number = float(value)
        if number != int(number) or not 0 <= number < 1e9:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        faults.append(f"has {value!r} as {name}, which must be a whole number of tokens.")
        return 0
    return int(number)


def _names(kind: TraceFormat) -> tuple[str, str, str]:
    return kind.time[0], kind.prompt[0], kind.output[0]


def _columns_text() -> str:
    return "Columns of the traces that are known: " + "; ".join(
        f"{each.name}: {', '.join(_names(each))}" for each in FORMATS
    )
