"""Normalizes words before argparse sees them: dashes, `-O`, dotted JSON keys, and flags of old guides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.flag_types import OldFlag, read_human_int, read_old_flags
from draftwise.knowledge.methods import find_placeholder
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.shell.words import Word

_DASHES = "\u2013\u2014\u2010\u2011\u2212"
_MAX_DOTS = 16


@dataclass(frozen=True, slots=True)
class ArgparseWords:
    """Words ready for argparse."""

    words: tuple[Word, ...]
    dotted: Mapping[str, Word]
    """Flags that were given key by key, with the first word of each."""
    spec: dict[str, Any] | None
    """What flags of old guides say, as the speculative JSON; None without such flags."""
    findings: tuple[Ruling, ...]


def spell(words: Sequence[Word], release: Release) -> ArgparseWords:
    """Rewrite the words of a command line as the release's parser does, without the flags of old guides."""
    speller = _Speller(release)
    plain = speller.merge_dotted(list(speller.respell(words)))
    rest, spec, about_old = _replace_old_flags(plain, release)
    return ArgparseWords(rest, speller.first, spec, (*speller.findings, *about_old))


@dataclass(slots=True)
class _Speller:
    release: Release
    first: dict[str, Word] = field(default_factory=dict)
    findings: list[Ruling] = field(default_factory=list)

    def respell(self, words: Sequence[Word]) -> Iterator[Word]:
        for index, word in enumerate(words):
            text = self._straighten(word)
            if text.startswith("--"):
                flag, separator, value = text.partition("=")
                head, dot, rest = flag.partition(".")
                yield replace(word, text=head.replace("_", "-") + dot + rest + separator + value)
            elif text.startswith("-O") and not text.startswith("-O.") and text != "-O":
                yield from self._optimization_level(word, text.removeprefix("-O").removeprefix("="))
            elif text == "-O" and index + 1 < len(words) and words[index + 1].text in ("0", "1", "2", "3"):
                yield replace(word, text="--optimization-level" if self._has_level() else "-O.level")
            else:
                yield replace(word, text=text)

    def _straighten(self, word: Word) -> str:
        """Give a flag that begins with a typographic dash the dashes it was meant to have."""
        text = word.text
        if text[:1] not in _DASHES or not text[1:2]:
            return text
        rest = text[1:].lstrip(_DASHES + "-")
        flag = rest.partition("=")[0].partition(".")[0]
        is_short = any(f"-{flag}" in row["aliases"] for row in self.release.table("flags").values())
        straight = f"-{rest}" if is_short else f"--{rest}"
        self.findings.append(
            get_rule("typographic-dash").ruling(
                text=text.partition("=")[0], straight=straight.partition("=")[0], where=word.where()
            )
        )
        return straight

    def _has_level(self) -> bool:
        return "--optimization-level" in self.release.table("flags")

    def _optimization_level(self, word: Word, level: str) -> Iterator[Word]:
        if self._has_level():
            yield replace(word, text="--optimization-level")
            yield replace(word, text=level)
        else:
            yield replace(word, text=f"-O.level={level}")

    def merge_dotted(self, words: list[Word]) -> list[Word]:
        """Put keys given one by one (`--speculative-config.method ngram`) at the end, as the JSON that they make up."""
        rest: list[Word] = []
        values: dict[str, dict[str, Any]] = {}
        waiting = iter(words)
        for word in waiting:
            flag, separator, value = word.text.partition("=")
            if not (word.text.startswith("-") and "." in flag) or flag.count(".") > _MAX_DOTS:
                rest.append(word)
                continue
            if not separator:
                following = next(waiting, None)
                if following is None:
                    self._report(word, "flag-needs-value", f"{flag} has no value after it.")
                    break
                value = following.text
                word = replace(word, unknown=(*word.unknown, *following.unknown))
            name, *keys = flag.removesuffix("+").split(".")
            first = self.first.setdefault(name, word)
            self.first[name] = replace(first, unknown=tuple(dict.fromkeys((*first.unknown, *word.unknown))))
            made = json.loads(json.dumps(value.split(","))) if flag.endswith("+") else self._value(value)
            for twice in _merge(values.setdefault(name, {}), _nest(keys, made)):
                self._report(word, "flag-given-twice", f"{name}.{twice} appears twice; only the last one counts.")
        for name, value_by_key in values.items():
            word = self.first[name]
            rest += [replace(word, text=name), replace(word, text=json.dumps(value_by_key))]
        return rest

    def _value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
        try:
            if Rulebook(self.release.version).holds("dotted-number-suffix"):
                return read_human_int(text)
        except ValueError:
            pass
        return text

    def _report(self, word: Word, code: str, message: str) -> None:
        self.findings.append(get_rule(code).ruling(message=message, where=word.where()))


def _nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    nested: dict[str, Any] = value
    return nested


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> Iterator[str]:
    """Merge nested mappings in place, append lists, and yield every key that is overwritten."""
    for key, value in update.items():
        before = into.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            for inner in _merge(before, value):
                yield f"{key}.{inner}"
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            if key in into:
                yield key
            into[key] = value


def _replace_old_flags(
    words: Sequence[Word], release: Release
) -> tuple[tuple[Word, ...], dict[str, Any] | None, tuple[Ruling, ...]]:
    """Take flags from before `--speculative-config` out of a command line; return the rest and the JSON they become."""
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
        return tuple(rest), None, ()
    spec = _put_together(taken, release)
    return tuple(rest), spec, tuple(_explain_old(taken, spec))


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


def _explain_old(taken: Sequence[tuple[OldFlag, Word, str]], spec: dict[str, Any]) -> Iterator[Ruling]:
    """Yield one ruling for all old flags, since one JSON replaces them all."""
    names = ", ".join(dict.fromkeys(old.flag for old, _, _ in taken))
    left_out = {old.flag: old.note for old, _, _ in taken if old.key not in spec and old.key != "model"}
    notes = "".join(f" {flag} has no successor: {note}." for flag, note in left_out.items() if note)
    yield get_rule("flag-from-before-0.9").ruling(
        names=names,
        flags_words="this flag" if len(taken) == 1 else "these flags",
        spec=json.dumps(spec),
        notes=notes,
        where=taken[0][1].where(),
    )
