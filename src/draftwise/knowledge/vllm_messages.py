"""Finds the messages of vLLM's releases in a pasted error, log line or whole log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from draftwise.knowledge.vllm import Span, all_keys, history

_TOPIC = "messages"
_LONGEST = 200_000
"""Characters of a pasted text that are looked at, from its end: that is where an error stands."""
_VALUE = r".{0,400}?"
_ENOUGH = 24
"""Letters of that part that suffice where the text holds no message in full, as of a line that was cut off."""
_FIRST, _SECOND, _BOTH = 8, 24, 20
"""A message's beginning: least letters before the first value, characters compared after it, least letters in both."""
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


def find_messages(text: str, *, most: int = 8) -> tuple[KnownMessage, ...]:
    """Return the messages in a text, those with the most constant text first."""
    squeezed = _squeeze(text[-_LONGEST:])
    lowered = squeezed.lower()
    parts = {template: part for template, part in _parts().items() if part in lowered}
    whole = [template for template in parts if _pattern(template).search(squeezed) is not None]
    cut_off = [template for template, part in parts.items() if sum(map(str.isalpha, part)) >= _ENOUGH]
    begun = () if whole or cut_off else (each for each in all_keys(_TOPIC) if _begins(each, squeezed))
    taken = (*whole, *(() if whole else cut_off), *begun) or (
        each for each in all_keys(_TOPIC) if _retells(lowered, each)
    )
    found = {template.lower(): template for template in taken}  # of two spellings the newer one
    alone = [each for low, each in found.items() if not any(low != other and low in other for other in found)]
    ordered = sorted(alone, key=lambda template: -len(template.replace("{}", "")))
    return tuple(map(_describe, ordered[:most]))


def _describe(template: str) -> KnownMessage:
    spans = history(_TOPIC, template)
    newest = spans[-1].value
    by_level = tuple(replace(each, value=each.value["level"]) for each in spans)
    return KnownMessage(
        template=template, level=newest["level"], rules=tuple(newest.get("rules", ())), history=by_level
    )


def _begins(template: str, squeezed: str) -> bool:
    """Say whether a text holds the beginning of a message, as of an error that was copied without its end."""
    first, value, rest = _squeeze(template).partition("{}")
    if not value or first.strip().lower() not in squeezed.lower():
        return False
    second = rest.partition("{}")[0][:_SECOND]
    letters = [sum(map(str.isalpha, part)) for part in (first, second)]
    pattern = re.escape(first) + _VALUE + re.escape(second.rstrip(". "))
    return letters[0] >= _FIRST and sum(letters) >= _BOTH and re.search(pattern, squeezed, re.IGNORECASE) is not None


def _retells(lowered: str, template: str) -> bool:
    """Say whether a text is a message with words left out, as people shorten them."""
    words = re.findall(r"[a-z_]{2,}", lowered.rpartition("error: ")[2])
    rest = iter(re.findall(r"[a-z_]{2,}", template.lower()))
    return len(words) >= _TOLD and all(any(word in each for each in rest) for word in words)


@cache
def _parts() -> Mapping[str, str]:
    """Return each message of any release with its longest part without a value, in lower case."""
    parts = {template: max(_split(template.lower()), key=len).strip() for template in all_keys(_TOPIC)}
    return {template: part for template, part in parts.items() if sum(map(str.isalpha, part)) >= _PART}


@cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(_VALUE.join(map(re.escape, _split(template))), re.IGNORECASE)


def _split(template: str) -> list[str]:
    """Return the parts of a message between its values. Who copies one may leave out the full stop at its end."""
    return template.rstrip(". ").split("{}")


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text)
