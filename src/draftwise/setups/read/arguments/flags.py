"""Matches the flags of one release as vLLM's argparse does, and reports words that belong to none."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import Release, releases
from draftwise.setups.read.shell.words import Mistake, Word

_MAX_REFUSALS = 20
_AMBIGUOUS = re.compile(r"ambiguous option: (\S+) could match (.*)")
_PAIRS = {"--enable-": "--disable-", "--disable-": "--enable-"}
_MAX_EXPLAINED = 20
_SHORT = re.compile(r"-[A-Za-z]")
"""How a short name begins, e.g. `-sc`."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """One flag as it was given."""

    name: str
    """Long name, e.g. `--tensor-parallel-size`."""
    row: Mapping[str, Any]
    """Row of the release's table."""
    option: str
    """Spelling that was used, in full."""
    values: tuple[str, ...]
    word: Word
    mistake: Mistake = ""
    """Mistake that a shell would have caused in the value."""
    unknown: tuple[str, ...] = ()
    """Unknown values that it depends on."""

    @property
    def field(self) -> str:
        """The engine argument that it sets."""
        return str(self.row["field"])

    @property
    def words(self) -> tuple[str, ...]:
        """Words that it was given with."""
        return (self.word.text,) if "=" in self.word.text else (self.word.text, *self.values)

    @property
    def appends(self) -> bool:
        """Whether each use adds a value to earlier ones."""
        return self.row["kind"] == "value" and isinstance(self.row["default"], list)


@dataclass(frozen=True, slots=True)
class MatchedFlags:
    """A command line as argparse reads it."""

    flags: tuple[FlagUse, ...]
    """Flags in the given order."""
    model: Word | None
    """The positional argument."""
    unknown: tuple[Word, ...]
    """Words that belong to no flag."""
    open: tuple[Word, ...]
    """Words with unknown values, which may be anything or nothing."""
    about_unknown: tuple[Ruling, ...]
    """Rulings about these."""
    refused: tuple[Word, ...]
    """Words that argparse rejects: a flag without its value, an abbreviation of several flags."""
    findings: tuple[Ruling, ...]


def match_flags(words: Sequence[Word], release: Release) -> MatchedFlags:
    """Match the words of a command line with the flags of a release.

    A word that argparse rejects is reported and left out, so that one mistake does not hide the next.
    """
    findings: list[Ruling] = []
    dropped: list[Word] = []
    rest, renamed = _use_long_names(words, release)
    parser = _parser(release)
    while True:
        try:
            namespace, unknown = parser.parse_known_args([_Text(word) for word in rest])
        except argparse.ArgumentError as error:
            refused = _find_refused(error, rest)
            findings.append(_explain(error, refused))
            gone = _find_span(refused, rest) if len(findings) < _MAX_REFUSALS else slice(None)
            dropped += rest[gone]
            del rest[gone]
            continue
        break
    seen: Sequence[FlagUse] = getattr(namespace, "seen", ())
    flags = tuple(given for given in seen if given.name)
    model = next((given.word for given in seen if not given.name), None)
    model, left = _choose_model(model, [_get_word(text) for text in unknown], rest, flags)
    findings += _abbreviated(flags, release)
    unclear = tuple(word for word in left if word.unknown)
    left = [word for word in left if not word.unknown]
    about_unknown = tuple(_explain_unknown(left, release))
    return MatchedFlags(flags, model, tuple(left), unclear, about_unknown, tuple(dropped), (*renamed, *findings))


def _choose_model(
    model: Word | None, unknown: list[Word], words: Sequence[Word], flags: Sequence[FlagUse]
) -> tuple[Word | None, list[Word]]:
    """Return the positional argument that was meant, and the words that are left.

    argparse takes the value of an unknown flag for the model if it comes first; a later one, or --model, is meant.
    """
    free = [word for word in unknown if not word.text.startswith("-")]
    flags_of_none = [word for word in unknown if word.text.startswith("-") and "=" not in word.text]
    values = [after for before, after in pairwise(words) if any(before is word for word in flags_of_none)]
    if model is not None and model.unknown:
        known = (word for word in free if not word.unknown and not any(word is each for each in values))
        other = next(known, None)
        return (model, unknown) if other is None else (other, [model, *(word for word in unknown if word is not other)])
    if model is None or not any(model is each for each in values):
        return model, unknown
    later = next(iter(free), None)
    if later is not None:
        return later, [word for word in unknown if word is not later]
    return (None if any(given.field == "model" for given in flags) else model), unknown


def _find_span(refused: Word, words: Sequence[Word]) -> slice:
    """Return where a refused flag stands. An abbreviation of several goes with the value after it."""
    index = next(index for index, word in enumerate(words) if word is refused)
    following = words[index + 1].text if index + 1 < len(words) else "-"
    takes_value = "=" not in refused.text and not following.startswith("-")
    return slice(index, index + (2 if takes_value else 1))


class _Text(str):
    """A word's text that remembers the word, on its way through argparse."""

    __slots__ = ("word",)
    word: Word

    def __new__(cls, word: Word) -> _Text:
        text = super().__new__(cls, word.text)
        text.word = word
        return text


def _get_word(text: str) -> Word:
    return text.word if isinstance(text, _Text) else Word(text)


class _Parser(argparse.ArgumentParser):
    """Raises what it refuses, instead of leaving the process, and says which word a flag came from."""

    def error(self, message: str) -> Any:
        """Raise a refusal that no single flag is to blame for."""
        raise argparse.ArgumentError(None, message)

    def _parse_optional(self, arg_string: str) -> Any:
        """Let every spelling of a flag carry its word on to the action."""
        found = super()._parse_optional(arg_string)
        return _carry(found, _get_word(arg_string)) if found is not None else None


def _carry(found: Any, word: Word) -> Any:
    """Replace the option string in what argparse found by one that knows its word. Newer versions give a list."""
    if isinstance(found, list):
        return [_carry(each, word) for each in found]
    action, option, *rest = found
    carried = _Text(Word(option, word.line, word.place, word.mistake))
    carried.word = word
    return (action, carried, *rest)


class _Record(argparse.Action):
    """Notes every flag in the order given."""

    def __init__(self, *, row: Mapping[str, Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.row = row

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add one flag to what the namespace has seen."""
        listed = values if isinstance(values, list) else [] if values is None else [values]
        word = _get_word(option_string) if option_string else _get_word(listed[0])
        name = "" if option_string is None else self.dest
        mistake = next((each.mistake for each in map(_get_word, listed) if each.mistake), word.mistake)
        unknown = tuple(dict.fromkeys(name for each in (word, *map(_get_word, listed)) for name in each.unknown))
        given = FlagUse(
            name, self.row, option_string or "", tuple(str(value) for value in listed), word, mistake, unknown
        )
        namespace.__dict__.setdefault("seen", []).append(given)


@cache
def _parser(release: Release) -> _Parser:
    formatter = partial(argparse.HelpFormatter, width=80)  # else each flag asks how wide the terminal is
    parser = _Parser(add_help=False, exit_on_error=False, argument_default=argparse.SUPPRESS, formatter_class=formatter)
    parser.add_argument("model_tag", nargs="?", action=_Record, row={})
    parser.add_argument(
        "--help", "-h", nargs=0, action=_Record, row={"field": "help", "kind": "switch", "aliases": ["-h"]}
    )
    paired = Rulebook(release.version).holds("paired-switches")
    taken: set[str] = set()
    for name, row in release.table("flags").items():
        names = [each for each in _spellings(name, row, paired=paired) if each not in taken]
        taken.update(names)
        nargs: Any = {"switch": 0, "list": "+"}.get(row["kind"], "?" if row.get("optional_value") else None)
        parser.add_argument(*names, action=_Record, row=row, nargs=nargs, dest=name)
    return parser


def _spellings(name: str, row: Mapping[str, Any], *, paired: bool) -> Iterator[str]:
    """Yield every spelling of a flag: its aliases and what negates it."""
    yield from (name, *row["aliases"])
    if "negation" in row:
        yield row["negation"]
        prefix = next((prefix for prefix in _PAIRS if paired and name.startswith(prefix)), None)
        if prefix:
            yield _PAIRS[prefix] + name.removeprefix(prefix)


def _find_refused(error: argparse.ArgumentError, words: Sequence[Word]) -> Word:
    """Return the word that argparse stumbled over: the last one that spells the flag that the error names."""
    ambiguous = _AMBIGUOUS.match(error.message)
    names = [ambiguous[1].partition("=")[0]] if ambiguous else (error.argument_name or "").split("/")
    keys = [word.text.partition("=")[0] for word in words]
    for key, word in zip(reversed(keys), reversed(words), strict=True):
        if key in names:
            return word
    for key, word in zip(reversed(keys), reversed(words), strict=True):
        if len(key) > 1 and key.startswith("-") and any(name.startswith(key) or key.startswith(name) for name in names):
            return word
    return words[-1]


def _explain(error: argparse.ArgumentError, word: Word) -> Ruling:
    flag = word.text.partition("=")[0]
    if ambiguous := _AMBIGUOUS.match(error.message):
        candidates = ", ".join(ambiguous[2].split(", ")[:6])
        return get_rule("ambiguous-flag").ruling(flag=flag, candidates=candidates, where=word.where())
    if "explicit argument" in error.message:
        return get_rule("switch-with-value").ruling(flag=flag, name=flag.lstrip("-"), where=word.where())
    return get_rule("flag-needs-value").ruling(where=word.where(), message=f"{flag} has no value after it.")


def _abbreviated(flags: Sequence[FlagUse], release: Release) -> Iterator[Ruling]:
    for given in flags:
        written = given.word.text.partition("=")[0]
        if written != given.option and given.option.startswith(written) and len(written) > 2:
            yield get_rule("abbreviated-flag").ruling(option=given.option, release=release, where=given.word.where())


def _explain_unknown(words: Sequence[Word], release: Release) -> Iterator[Ruling]:
    """Yield one ruling for each word that nothing takes. Of very many, the first ones and their number."""
    for index, word in enumerate(words[:_MAX_EXPLAINED]):
        if word.text.startswith("-") and not word.text.lstrip("-")[:1].isdigit():
            yield _explain_flag(word, release)
        elif word.text.lower() in ("true", "false"):
            yield get_rule("switch-with-value").ruling(
                where=word.where(),
                fix="Write --flag to turn it on and --no-flag to turn it off.",
                message=f"{word.text!r} is alone, because switches take no value.",
            )
        elif index == 0 or not words[index - 1].text.startswith("-"):
            yield get_rule("stray-argument").ruling(
                where=word.where(),
                fix="Check its quotes and the flag before it.",
                message=f"{word.text[:60]!r} is neither a flag nor a value of one.",
            )
    if len(words) > _MAX_EXPLAINED:
        yield get_rule("stray-argument").ruling(num=len(words) - _MAX_EXPLAINED)


def _explain_flag(word: Word, release: Release) -> Ruling:
    flag = word.text.partition("=")[0].partition(".")[0]
    if package := _find_plugin(flag):
        return get_rule("flag-of-plugin").ruling(flag=flag, package=package, where=word.where(flag))
    elsewhere = _releases_with(flag)
    if elsewhere:
        return get_rule("flag-of-other-release").ruling(
            release=release, flag=flag, elsewhere=elsewhere, where=word.where(flag)
        )
    names = sorted(spell_flags(release))
    from difflib import get_close_matches  # read only when something is misspelled

    near = get_close_matches(flag[:80], names, n=1, cutoff=0.7)
    return get_rule("unknown-flag").ruling(
        first=releases()[0],
        last=releases()[-1],
        flag=flag[:80],
        where=word.where(flag[:80]),
        fix=f"Did you mean {near[0]}?" if near else "",
    )


def _find_plugin(flag: str) -> str:
    """Return the package that adds a flag to vLLM's own; empty for none."""
    return next((package for package, flags in read_data("plugin_flags")["flags"].items() if flag in flags), "")


def _use_long_names(words: Sequence[Word], release: Release) -> tuple[list[Word], list[Ruling]]:
    """Return the words with short names that only other releases have (`-sc`) written out, and a ruling on each."""
    findings: list[Ruling] = []
    table = release.table("flags")
    own = {alias for row in table.values() for alias in row["aliases"]}
    short = [word for word in words if _SHORT.match(word.text) and word.text.partition("=")[0] not in own]
    renamed = {}
    for word in short:
        flag, separator, value = word.text.partition("=")
        long = _long_names().get(flag, "")
        if long in table:
            findings.append(_explain_flag(word, release))
            renamed[id(word)] = replace(word, text=long + separator + value)
    return [renamed.get(id(word), word) for word in words], findings


@cache
def _long_names() -> Mapping[str, str]:
    return {
        alias: name
        for release in releases("flags")
        for name, row in release.table("flags").items()
        for alias in row["aliases"]
    }


@cache
def spell_flags(release: Release) -> frozenset[str]:
    """Return every spelling of a release's flags."""
    paired = Rulebook(release.version).holds("paired-switches")
    return frozenset(
        spelling for name, row in release.table("flags").items() for spelling in _spellings(name, row, paired=paired)
    )


def _releases_with(flag: str) -> str:
    """Say which releases have a flag, in runs: `0.9.2 to 0.11.2 have it`. Empty for none."""
    known = releases("flags")
    names = [str(release) for release in known if flag in spell_flags(release)]
    if not names:
        return ""
    every = [str(release) for release in known]
    runs: list[list[str]] = []
    for name in names:
        if runs and every.index(runs[-1][-1]) + 1 == every.index(name):
            runs[-1].append(name)
        else:
            runs.append([name])
    spans = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{' and '.join(spans)} {'has' if len(names) == 1 else 'have'} it"
