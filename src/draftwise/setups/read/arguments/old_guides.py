"""Flags from before `--speculative-config`, taken out of a command line and written as the JSON that replaces them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.methods import find_placeholder
from draftwise.facts.old_flags import OldFlag, read_old_flags
from draftwise.facts.rules import get_rule
from draftwise.facts.vllm import Release
from draftwise.setups.read.shell.place import get_place
from draftwise.setups.read.shell.words import Word

__all__ = ["Replaced", "replace_old_flags"]


@dataclass(frozen=True, slots=True)
class Replaced:
    """A command line without its old flags."""

    words: tuple[Word, ...]
    spec: dict[str, Any] | None
    """What the old flags say, as the speculative JSON; None without old flags."""
    findings: tuple[Ruling, ...]


def replace_old_flags(words: Sequence[Word], release: Release) -> Replaced:
    """Take the old flags out of a command line."""
    rest: list[Word] = []
    taken: list[tuple[OldFlag, Word, str]] = []
    known, table = read_old_flags(), release.table("flags")
    waiting = iter(range(len(words)))
    for index in waiting:
        flag, separator, value = words[index].text.partition("=")
        old = known.get(flag)
        if old is None or flag in table:
            rest.append(words[index])
            continue
        following = words[index + 1].text if index + 1 < len(words) else ""
        if not separator and _takes(old, following):
            value = following
            next(waiting, None)
        taken.append((old, words[index], value))
    if not taken:
        return Replaced(tuple(rest), None, ())
    spec = _put_together(taken, release)
    return Replaced(tuple(rest), spec, tuple(_explain(taken, spec)))


def _takes(old: OldFlag, following: str) -> bool:
    """Say whether the word after a flag is its value."""
    if old.kind == "switch":
        return following.lower() in ("true", "false")
    return bool(following) and not following.startswith("--")


def _put_together(taken: Sequence[tuple[OldFlag, Word, str]], release: Release) -> dict[str, Any]:
    fields = release.table("spec_fields")
    spec: dict[str, Any] = {}
    for old, _, text in taken:
        if old.key == "model" and (method := find_placeholder(text)) is not None:
            spec["method"] = method.name
        elif old.key in fields:
            spec[old.key] = _typed(old, text)
    return spec


def _typed(old: OldFlag, text: str) -> Any:
    try:
        match old.kind:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "switch":
                return text.lower() != "false"
    except (ValueError, OverflowError):
        return text
    return text


def _explain(taken: Sequence[tuple[OldFlag, Word, str]], spec: dict[str, Any]) -> Iterator[Ruling]:
    """Yield one ruling for all old flags, since one JSON replaces them all."""
    names = ", ".join(dict.fromkeys(old.flag for old, _, _ in taken))
    left_out = {old.flag: old.note for old, _, _ in taken if old.key not in spec and old.key != "model"}
    notes = "".join(f" {flag} has no successor: {note}." for flag, note in left_out.items() if note)
    yield get_rule("flag-from-before-0.9").ruling(
        f"{names}: no release from 0.9.2 on has {'this flag' if len(taken) == 1 else 'these flags'}.",
        where=get_place(taken[0][1]),
        fix=f"Write --speculative-config '{json.dumps(spec)}' instead.{notes}",
    )
