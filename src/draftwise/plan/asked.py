"""Finds the topic of a question in a person's own words: terms of the field, and findings with the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import log

from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.stored import read_rows
from draftwise.knowledge.terms import Term, read_terms

_LEAST = 0.5
"""Share of what a question's words say, weighed by their rarity, that a title must have to be an answer."""
_MOST = 3
"""Titles that answer one question."""
_LOGGED = re.compile(r"Error\b|Exception\b|Traceback|\bERROR\b|\bWARN|[{}=<>]|\d\d:\d\d|\w\(|::|//|\n")
"""Marks of a line of a log or of code, which no question has."""
_WORD = re.compile(r"[a-z][a-z0-9_@.+-]*[a-z0-9]|[a-z0-9]+")
_ENDINGS = re.compile(r"(?:ing|ed|es|er|s|ly|ance|ation|ion)$")


def is_question(text: str) -> bool:
    """Return whether a text is a person's, and no line of a log or of code."""
    return _LOGGED.search(text) is None


def find_phrases(text: str, names: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the names that a text mentions, longer ones first where they overlap, and whether it says nothing else.

    Args:
        text: a question.
        names: spelling without case and separators -> name.
    """
    words = _WORD.findall(text.lower())
    taken: set[int] = set()
    found = []
    for length in range(min(4, len(words)), 0, -1):
        for start in range(len(words) - length + 1):
            places = set(range(start, start + length))
            known = names.get(squeeze("".join(words[start : start + length])))
            if known is None or places & taken or (length == 1 and words[start] in _common()):
                continue
            taken |= places
            found.append(known)
    return found, all(place in taken or word in _common() for place, word in enumerate(words))


def squeeze(name: str) -> str:
    """Return a name without case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_titles(text: str, *, least: float = _LEAST) -> list[str]:
    """Return the codes nearest to a question, at most three; each title has the question's names with `_`."""
    titles, weights = _titles()
    asked = _stems(text)
    names = {stem for stem in asked if "_" in stem}
    whole = sum(weights.get(stem, max(weights.values())) for stem in asked)
    scores: dict[str, float] = {}
    for code, stems in titles.items():
        shared = asked & stems
        if names <= stems and (len(shared) >= 2 or (shared and len(asked) == 1)):
            of_title = sum(weights[stem] for stem in shared) / sum(weights[stem] for stem in stems)
            scores[code] = sum(weights[stem] for stem in shared) / whole * 0.6 + of_title * 0.4
    best = sorted(scores, key=lambda code: (-scores[code], code))
    return [code for code in best[:_MOST] if scores[code] >= max(least, 0.8 * scores[best[0]])]


def find_tasks(text: str) -> list[Term]:
    """Return the tasks and complaints of which a question has all words of one wording."""
    asked, tasks = _stems(text), (term for term in read_terms() if term.kind == "task")
    return [term for term in tasks if any(_stems(name) <= asked for name in term.names)]


@cache
def _titles() -> tuple[Mapping[str, frozenset[str]], Mapping[str, float]]:
    """Return the stems of every title by code, and how much a stem says: more, the fewer titles have it."""
    texts = {code: row.title for code, row in all_findings().items()}
    texts |= {code: row.title for code, row in all_rules().items()}
    texts |= {code: row.title for code, row in all_advice().items()}
    texts |= {code: row.what for code, row in all_defects().items() if len(row.what) < 120}
    titles = {code: _stems(text) for code, text in texts.items()}
    counts = Counter(stem for stems in titles.values() for stem in stems)
    return titles, {stem: log(len(titles) / count) for stem, count in counts.items()}


def _stems(text: str) -> frozenset[str]:
    words = set(_WORD.findall(text.lower())) - _common()
    return frozenset(_same().get(stem, stem) for stem in map(_stem, words))


def _stem(word: str) -> str:
    stem = _ENDINGS.sub("", word) if len(word) > 4 else word
    return stem if len(stem) > 2 else word


@cache
def _common() -> frozenset[str]:
    """Return words that say nothing about a question."""
    return frozenset(read_rows("asked")[0]["common"])


@cache
def _same() -> Mapping[str, str]:
    """Return stems that people use for another one: stem -> the one of the titles."""
    return {_stem(word): _stem(row["as"]) for row in read_rows("asked")[1:] for word in row["words"]}
