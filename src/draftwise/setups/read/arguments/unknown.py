"""What a word is that no flag of a release takes: a flag of another release, a misspelling, or a stray value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from draftwise.core import Finding, Ruling
from draftwise.facts.rules import get_rule
from draftwise.facts.vllm import Release, releases
from draftwise.setups.read.arguments.flags import spellings
from draftwise.setups.read.shell.place import get_place
from draftwise.setups.read.shell.words import Word

__all__ = ["explain_unknown", "use_long_names"]

_MAX_EXPLAINED = 20
_SHORT = re.compile(r"-[A-Za-z]")
"""How a short name begins, e.g. `-sc`."""


def explain_unknown(words: Sequence[Word], release: Release) -> Iterator[Ruling]:
    """Yield one ruling for each word that nothing takes; of very many, the first ones and their number."""
    for index, word in enumerate(words[:_MAX_EXPLAINED]):
        if word.text.startswith("-") and not word.text.lstrip("-")[:1].isdigit():
            yield _explain_flag(word, release)
        elif word.text.lower() in ("true", "false"):
            yield get_rule("switch-with-value").ruling(
                f"{word.text!r} stands alone: switches take no value.",
                where=get_place(word),
                fix="Write --flag for on and --no-flag for off.",
            )
        elif index == 0 or not words[index - 1].text.startswith("-"):
            yield get_rule("stray-argument").ruling(
                f"{word.text[:60]!r} is neither a flag nor the value of one.",
                where=get_place(word),
                fix="Check the quotes around it and the flag before it.",
            )
    if len(words) > _MAX_EXPLAINED:
        yield get_rule("stray-argument").ruling(f"{len(words) - _MAX_EXPLAINED} more words are not understood.")


def _explain_flag(word: Word, release: Release) -> Ruling:
    flag = word.text.partition("=")[0].partition(".")[0]
    elsewhere = _releases_with(flag)
    if elsewhere:
        return get_rule("flag-of-other-release").ruling(
            f"vLLM {release} has no {flag}; {elsewhere}.", where=get_place(word, flag)
        )
    names = sorted(_spellings_by_release()[str(release)])
    from difflib import get_close_matches  # read only when something is misspelled

    near = get_close_matches(flag[:80], names, n=1, cutoff=0.7)
    return get_rule("unknown-flag").ruling(
        f"No release of vLLM from {releases()[0]} to {releases()[-1]} has {flag[:80]}.",
        where=get_place(word, flag[:80]),
        fix=f"Did you mean {near[0]}?" if near else "",
    )


def use_long_names(words: Sequence[Word], release: Release, findings: list[Finding]) -> list[Word]:
    """Return the words with short names that only other releases have (`-sc`) written out; each is reported."""
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
    return [renamed.get(id(word), word) for word in words]


@cache
def _long_names() -> Mapping[str, str]:
    return {
        alias: name
        for release in releases()
        for name, row in release.table("flags").items()
        for alias in row["aliases"]
    }


@cache
def _spellings_by_release() -> Mapping[str, frozenset[str]]:
    paired = get_rule("paired-switches")
    return {
        str(release): frozenset(
            spelling
            for name, row in release.table("flags").items()
            for spelling in spellings(name, row, paired=paired.holds(release.version))
        )
        for release in releases()
    }


def _releases_with(flag: str) -> str:
    """Say which releases have a flag, in runs: `0.9.2 to 0.11.2 have it`; empty for none."""
    names = [name for name, flags in _spellings_by_release().items() if flag in flags]
    if not names:
        return ""
    every = [str(release) for release in releases()]
    runs: list[list[str]] = []
    for name in names:
        if runs and every.index(runs[-1][-1]) + 1 == every.index(name):
            runs[-1].append(name)
        else:
            runs.append([name])
    spans = [run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{' and '.join(spans)} {'has' if len(names) == 1 else 'have'} it"
