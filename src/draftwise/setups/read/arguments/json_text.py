"""JSON as it stands on command lines and in manifests, with the mistake named where vLLM would not take it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["JsonText", "read_json"]

_MAX_CHARS = 100_000
_TYPOGRAPHIC = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})
_SINGLE_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'""")
_PYTHON_WORD = re.compile(r"""("(?:[^"\\]|\\.)*")|\b(True|False|None)\b""")
_TRAILING_COMMA = re.compile(r"""("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])""")
_BARE_WORD = re.compile(r"""("(?:[^"\\]|\\.)*")|(?<![\w.+-])(?!(?:true|false|null)\b)([A-Za-z_/][\w./-]*)""")
_BRACES = re.compile(r"""("(?:[^"\\]|\\.)*")|([{}])""")


@dataclass(frozen=True, slots=True)
class JsonText:
    """What a text holds, and what is wrong with it."""

    value: Any = None
    """The JSON value; where `mistake` is set, the value that was probably meant, or None."""
    mistake: str = ""
    """Why vLLM does not take the text; empty for JSON."""
    fix: str = ""
    duplicates: tuple[str, ...] = ()
    """Keys that one object has twice; the last one counts."""


def read_json(text: str) -> JsonText:
    """Return the value of a text; never raises."""
    if len(text) > _MAX_CHARS:
        return JsonText(mistake=f"is longer than {_MAX_CHARS:,} characters")
    try:
        return _load(text)
    except (ValueError, RecursionError) as error:
        return _explain(text, str(error))


def _load(text: str) -> JsonText:
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.extend(key for key in value if counts[key] > 1)
        return value

    return JsonText(json.loads(text, object_pairs_hook=collect), duplicates=tuple(duplicates))


def _explain(text: str, problem: str) -> JsonText:
    """Try each repair alone, then all of them on top of each other; what gives JSON names the mistake."""
    if not re.search(r"[{\[]", text):
        return JsonText(mistake=f"is not JSON ({problem})", fix="Write an object in braces.")
    for repair, mistake, fix in _REPAIRS:
        if (value := _try(repair(text))) is not None:
            return JsonText(value, mistake, fix)
    mistakes, fixes, repaired = [], [], text
    for repair, mistake, fix in _REPAIRS:
        before, repaired = repaired, repair(repaired)
        if repaired != before:
            mistakes.append(mistake)
            fixes.append(fix)
            if (value := _try(repaired)) is not None:
                return JsonText(value, " and ".join(mistakes), " ".join(fixes))
    return JsonText(mistake=f"is not JSON ({problem})", fix="Check quotes, commas and braces.")


def _try(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None


def _outside_strings(pattern: re.Pattern[str], make: Callable[[str], str]) -> Callable[[str], str]:
    """Return a repair that rewrites what a pattern finds outside of double quotes."""

    def repair(text: str) -> str:
        return pattern.sub(lambda found: found[1] if found[1] is not None else make(found[found.lastindex or 0]), text)

    return repair


def _without_outer_quotes(text: str) -> str:
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"" else text


def _with_closing_braces(text: str) -> str:
    braces = [found[2] for found in _BRACES.finditer(text)]
    return text + "}" * max(0, braces.count("{") - braces.count("}"))


_REPAIRS: tuple[tuple[Callable[[str], str], str, str], ...] = (
    (
        lambda text: text.translate(_TYPOGRAPHIC),
        "has typographic quotes, as word processors make them",
        "Type straight quotes.",
    ),
    (
        _without_outer_quotes,
        "has quotes of its own around it, and no shell takes them away here",
        "Leave the outer quotes out.",
    ),
    (
        lambda text: text.replace('\\"', '"'),
        "has a backslash before each quote, and no shell takes them away here",
        "Leave the backslashes out.",
    ),
    (
        _outside_strings(_SINGLE_QUOTED, lambda inner: json.dumps(inner.replace("\\'", "'"))),
        "has single quotes inside, as Python writes dictionaries",
        "JSON wants double quotes inside and, in a shell, single quotes around the whole.",
    ),
    (
        _outside_strings(_PYTHON_WORD, lambda word: {"True": "true", "False": "false", "None": "null"}[word]),
        "has True, False or None of Python",
        "JSON writes true, false and null.",
    ),
    (
        _outside_strings(_TRAILING_COMMA, lambda _: ""),
        "has a comma before a closing brace",
        "Take that comma away.",
    ),
    (
        _outside_strings(_BARE_WORD, json.dumps),
        "has no quotes around its words: a shell took them away, or they were never there",
        "Put double quotes around every word, and single quotes around the whole.",
    ),
    (_with_closing_braces, "is never closed", "Close the last brace."),
)
