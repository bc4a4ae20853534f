"""Finds the messages of vLLM's releases in a pasted error, log line or whole log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from draftwise.knowledge.vllm import Span, all_keys, history

_TOPIC = "messages"
_LONGEST = 200_000
"""Characters of a pasted text that are looked at, from its end: that is where an error stands."""
_VALUE = r".{0,400}?"
_LAST = r"(\[.*?\]|\S+?)[.,;'\")\]]*(?= |$)"
"""A value with which a message ends: a list or a word, without what may follow it."""
_FIRST, _BOTH = 8, 20
"""Least letters of a message's beginning, and of all that a text without the whole message has of it."""
_SPAN, _OPEN = 12, 2
"""Most words of a value, and of a value with which a text ends."""
_LINE = 400
"""Words of a line that are compared with a message that it may hold a part of."""
_MARKS = ".,'\")]"
"""What may end a word, and be missing in a copy."""
_NEAR = 0.5
"""Share of the words that a message must have in common with a text to be named as the nearest."""
_TOLD = 7
"""Words, in their order, that tell a message of which others are left out."""
_PART = 12
"""Letters of a message's longest part without a value: where that is not found, the message is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMessage:
    """One message of vLLM."""

    template: str
    """Text of the message, with `{}` for each value."""
    level: str
    """Class of the exception, or level of the line."""
    rules: tuple[str, ...]
    """Rules whose condition is at the same place in the source."""
    history: tuple[Span, ...]
    is_same: bool = True
    """Whether the text holds it, in full or cut off; False if it is only the message with words left out."""


def find_messages(text: str, *, most: int = 8) -> tuple[KnownMessage, ...]:
    """Return the messages in a text, those with the most constant text first."""
    text = text[-_LONGEST:]
    squeezed = _squeeze(text)
    lowered = squeezed.lower()
    parts = {template: part for template, part in _parts().items() if part in lowered}
    taken = [template for template in parts if _pattern(template).search(squeezed) is not None]
    if not taken:
        starts = {template: start for template, start in _starts().items() if start in lowered}
        lines = dict.fromkeys([lowered, *map(_squeeze, text.lower().splitlines())])
        shown = dict.fromkeys((*parts.items(), *starts.items()))
        taken = [each for each, part in shown if any(part in line and _holds_part(line, each) for line in lines)]
        inner = [part for line in lines if sum(map(str.isalpha, part := line.strip(" .\u2026"))) >= _BOTH]
        taken = taken or [each for each in all_keys(_TOPIC) if any(part in each.lower() for part in inner)]
    is_same = bool(taken)
    words = re.findall(r"[a-z_]{2,}", lowered.rpartition("error: ")[2])
    if len(words) >= _TOLD:
        taken = taken or [each for each in all_keys(_TOPIC) if _retells(words, each)]
    found = {template.lower(): template for template in taken}  # of two spellings the newer one
    alone = [each for low, each in found.items() if not any(low != other and low in other for other in found)]
    ordered = sorted(alone, key=lambda template: -len(template.replace("{}", "")))
    return tuple(replace(_describe(each), is_same=is_same) for each in ordered[:most])


def read_values(text: str, template: str) -> Mapping[str, str]:
    """Return the values in a text that holds a message, each by the word in front of it: `heads ({})`."""
    parts = _split(template)
    pattern = "(.+?)".join(map(re.escape, parts))
    if not parts[-1]:
        pattern = pattern.removesuffix("(.+?)") + _LAST
    found = re.search(pattern, _squeeze(text), re.IGNORECASE)
    words = [re.findall(r"[a-z_]+", part.lower())[-1:] for part in parts]
    return {} if found is None else {word[0]: value for word, value in zip(words, found.groups(), strict=False) if word}


def find_nearest(text: str) -> str:
    """Return the message with most words in common with the end of a text; empty if none has many."""
    asked = set(_words(" ".join(text.split()[-_LINE:])))
    scores = {each: len(asked & words) / len(asked | words) for each, words in _all_words().items() if asked & words}
    best = max(scores, key=lambda each: scores[each], default="")
    return best if best and scores[best] >= _NEAR else ""


def _describe(template: str) -> KnownMessage:
    spans = history(_TOPIC, template)
    newest = spans[-1].value
    by_level = tuple(replace(each, value=each.value["level"]) for each in spans)
    return KnownMessage(
        template=template, level=newest["level"], rules=tuple(newest.get("rules", ())), history=by_level
    )


@cache
def _starts() -> Mapping[str, str]:
    """Return each message with the text in front of its first value, in lower case, if that says enough."""
    starts = {template: _squeeze(template).partition("{}")[0].strip().lower() for template in all_keys(_TOPIC)}
    return {template: start for template, start in starts.items() if sum(map(str.isalpha, start)) >= _FIRST}


def _holds_part(line: str, template: str) -> bool:
    """Say whether a line begins or ends within a message, as of an error that was copied without its end or start.

    What stands on the line before the message's first word does not count, nor what follows its last.
    """
    text, message = line.split()[:_LINE], template.lower().split()
    starts = [at for at in range(len(text)) if at == 0 or text[at - 1].endswith((":", "]"))]
    ways = [(at, 0) for at in range(len(text))] + [(at, word) for at in starts for word in range(1, len(message))]
    return any(_follow(text[at:], message[word:]) >= _BOTH for at, word in ways)


def _follow(text: Sequence[str], message: Sequence[str]) -> int:
    """Return how many letters of a message a text repeats until one of the two ends; 0 if the text leaves it."""
    at = word = letters = skipped = 0
    while at < len(text) and word < len(message):
        own, given = message[word].rstrip(_MARKS), text[at].rstrip(_MARKS)
        is_cut = at == len(text) - 1 and own.startswith(given)
        if is_cut or re.fullmatch(r"\S*".join(map(re.escape, own.split("{}"))), given):
            letters += sum(map(str.isalpha, own))
            word, skipped = word + 1, 0
        elif word and "{}" in message[word - 1] and skipped < _SPAN:
            skipped += 1
        else:
            return 0
        at += 1
    return letters if skipped <= _OPEN else 0


def _words(text: str) -> Iterator[str]:
    return (each for each in re.findall(r"[a-z_]{3,}", text.lower()))


@cache
def _all_words() -> Mapping[str, frozenset[str]]:
    return {template: frozenset(_words(template)) for template in all_keys(_TOPIC)}


def _retells(words: Sequence[str], template: str) -> bool:
    """Say whether words are those of a message in their order, some left out, as people shorten them."""
    rest = iter(re.findall(r"[a-z_]{2,}", template.lower()))
    return all(any(word in each for each in rest) for word in words)


@cache
def _parts() -> Mapping[str, str]:
    """Return each message of any release with its longest part without a value, in lower case."""
    parts = {template: max(_split(template.lower()), key=len).strip(" .") for template in all_keys(_TOPIC)}
    return {template: part for template, part in parts.items() if sum(map(str.isalpha, part)) >= _PART}


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(_VALUE.join(map(re.escape, _split(template))), re.IGNORECASE)


def _split(template: str) -> list[str]:
    """Return the parts of a message between its values. Who copies one may leave out the full stop at its end."""
    return template.rstrip(". ").split("{}")


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text)
