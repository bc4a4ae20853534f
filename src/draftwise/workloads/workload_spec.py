"""Parses `--workload`: a source and its filters in one word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from draftwise.workloads.conversation import Turns
from draftwise.workloads.text_lengths import Length, parse_length
from draftwise.workloads.workload_rows import Faults

BUNDLED = ("code", "prose", "rewrite")


class WorkloadKind(StrEnum):
    """Where prompts come from."""

    BUNDLED = "bundled"
    FILE = "file"
    """A file of prompts, a log or a trace; its first row shows which."""
    LOG = "log"
    TRACE = "trace"
    SYNTHETIC = "synthetic"


class RequestForm(StrEnum):
    """The endpoint that prompts are sent to."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A parsed `--workload`.

    `SOURCE[#OPTION,...]` with SOURCE a bundled name, `FILE`, `log:FILE`, `trace:FILE`; or `synthetic:OPTION,...`.
    """

    text: str
    kind: WorkloadKind
    target: str
    """Bundled name or path; empty for synthetic prompts."""
    name: str | None = None
    n: int | None = None
    """Number of prompts to take from the start."""
    sample: int | None = None
    """Number of prompts to draw from all of them, kept in order."""
    seed: int = 0
    bucket: tuple[int, int | None] | None = None
    """Prompts with a length in [low, high) tokens."""
    split: tuple[int, ...] = ()
    """Edges between length buckets, each of which becomes a workload."""
    prompt: Length | None = None
    output: Length | None = None
    logged: bool = False
    """Whether the length of the logged answer becomes `max_tokens`."""
    force: bool | None = None
    """Whether answers continue to `max_tokens`; None for the kind's default."""
    form: RequestForm | None = None
    prefix: tuple[int, int] | None = None
    """(tokens, groups) of common prefixes."""
    turns: Turns | None = None
    source: str | None = None
    """Source of the text that fills lengths."""
    tokenizer: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options given."""
        return tuple(key for key, _ in _split(self.text)[1])

    @property
    def label(self) -> str:
        """Name for files and tables: the given one, or the source with the options that shape it."""
        if self.name is not None:
            return self.name
        stem = re.sub(r"\.(jsonl?|csv|txt)$", "", Path(self.target).name.removesuffix(".gz")) or str(self.kind)
        options = _split(self.text)[1]
        kept = ",".join(f"{key}={value}" for key, value in options if key not in ("name", "tokenizer"))
        return re.sub(r"[^A-Za-z0-9._=+-]+", "-", f"{stem},{kept}" if kept else stem)[:80]


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise ValueError(f"must be a positive whole number, got {text!r}.")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"must be a whole number, got {text!r}.")
    return int(text)


def _bucket(text: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"(\d+)-(\d*)", text)
    if not found or (found[2] and int(found[2]) <= int(found[1])):
        raise ValueError(f"must be a range of tokens such as 0-1000 or 4000- (the end is not in it), got {text!r}.")
    return int(found[1]), int(found[2]) if found[2] else None


def _edges(text: str) -> tuple[int, ...]:
    parts = text.split("/")
    if not all(re.fullmatch(r"[1-9]\d*", part) for part in parts) or sorted(set(map(int, parts))) != [*map(int, parts)]:
        raise ValueError(f"must be rising edges in tokens such as 512/2048, got {text!r}.")
    return tuple(map(int, parts))


def _prefix(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not found:
        raise ValueError(f"must be TOKENS or TOKENSxGROUPS such as 1024x4, got {text!r}.")
    return int(found[1]), int(found[2] or 1)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"must be yes or no, got {text!r}.")
    return text == "yes"


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"must be {', '.join(kind)}, got {text!r}.") from None

    return read


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._=+-]+", text):
        raise ValueError(f"must be of letters, digits and . _ = + - only (it names a file), got {text!r}.")
    return text


_READ: Mapping[str, Callable[[str], Any]] = {
    "name": _name,
    "n": _count,
    "sample": _count,
    "seed": _seed,
    "prompt": _bucket,
    "split": _edges,
    "output": parse_length,
    "force": _yes,
    "form": _choice(RequestForm),
    "prefix": _prefix,
    "turns": _choice(Turns),
    "source": str,
    "tokenizer": Path,
}
_ONLY: Mapping[str, tuple[WorkloadKind, ...]] = {
    "turns": (WorkloadKind.FILE, WorkloadKind.LOG),
    "sample": (WorkloadKind.BUNDLED, WorkloadKind.FILE, WorkloadKind.LOG),
    "source": (WorkloadKind.FILE, WorkloadKind.TRACE, WorkloadKind.SYNTHETIC),
}
"""Options that not every kind of source takes."""


def check_options(kind: WorkloadKind, options: Sequence[str], faults: Faults) -> None:
    """Add a fault for each option that a kind of workload does not have."""
    known = [name for name in _READ if kind in _ONLY.get(name, (kind,))]
    for key in options:
        if key not in known:
            near = get_close_matches(key, known, 1)
            fix = f"Did you mean {near[0]}?" if near else f"Options here: {', '.join(known)}."
            text = f"--workload has {key!r}, which is no option of a {kind} workload."
            faults.add("unknown-option", text, "--workload", fix)


def parse_spec(text: str, faults: Faults) -> WorkloadSpec:
    """Return a parsed `--workload`; faults go to `faults`."""
    kind, target = _find_kind(text)
    values: dict[str, Any] = {}
    given = _split(text)[1]
    check_options(kind, [key for key, _ in given], faults)
    for key, value in given:
        if key in _READ:
            _read_option(kind, key, value, values, faults)
    if {"n", "sample"} <= values.keys():
        faults.add("option-conflict", f"{text} has both n and sample, which exclude each other.", text, "Keep one.")
    return WorkloadSpec(text=text, kind=kind, target=target, **values)


def _read_option(kind: WorkloadKind, key: str, value: str, values: dict[str, Any], faults: Faults) -> None:
    try:
        if key == "output" and value == "logged" and kind in (WorkloadKind.FILE, WorkloadKind.LOG):
            values["logged"] = True
        elif key == "prompt":
            values |= {"prompt": parse_length(value)} if kind is WorkloadKind.SYNTHETIC else {"bucket": _bucket(value)}
        else:
            values[key] = _READ[key](value)
    except ValueError as error:
        faults.add("bad-option", f"--workload's {key} {error}", "--workload")


def _find_kind(text: str) -> tuple[WorkloadKind, str]:
    head = _split(text)[0]
    if head == WorkloadKind.SYNTHETIC:
        return WorkloadKind.SYNTHETIC, ""
    if head in BUNDLED:
        return WorkloadKind.BUNDLED, head
    for kind in (WorkloadKind.LOG, WorkloadKind.TRACE):
        if head.startswith(f"{kind}:"):
            return kind, head.removeprefix(f"{kind}:")
    return WorkloadKind.FILE, head


def _split(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the source and the options as (key, value), a word alone as (word, yes)."""
    if text == WorkloadKind.SYNTHETIC or text.startswith(f"{WorkloadKind.SYNTHETIC}:"):
        head, rest = str(WorkloadKind.SYNTHETIC), text.removeprefix(f"{WorkloadKind.SYNTHETIC}").removeprefix(":")
    elif Path(text).is_file():  # a path with a # in it
        head, rest = text, ""
    else:
        head, _, rest = text.partition("#")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    return head, tuple((key.strip(), value.strip() if sign else "yes") for key, sign, value in pairs)
