"""Values of flags: JSON with its mistakes, and the types of a release's flags."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core import Finding, Ruling, cause_of
from draftwise.knowledge.flag_types import HUMAN_READABLE, read_human_int, takes_none, takes_text
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.arguments.flags import FlagUse

_MAX_CHARS = 100_000
_TYPOGRAPHIC = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " "})
_SINGLE_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'""")
_PYTHON_WORD = re.compile(r"""("(?:[^"\\]|\\.)*")|\b(True|False|None)\b""")
_TRAILING_COMMA = re.compile(r"""("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])""")
_BARE_WORD = re.compile(r"""("(?:[^"\\]|\\.)*")|(?<![\w.+-])(?!(?:true|false|null)\b)([A-Za-z_/][\w./-]*)""")
_BRACES = re.compile(r"""("(?:[^"\\]|\\.)*")|([{}])""")


@dataclass(frozen=True, slots=True)
class JsonText:
    """The value of a text, and what is wrong with it."""

    value: Any = None
    """JSON value; with a `mistake`, the value that was probably meant, or None."""
    mistake: str = ""
    """Why vLLM rejects the text; empty for valid JSON."""
    fix: str = ""
    duplicates: tuple[str, ...] = ()
    """Keys that occur twice in one object; the last one counts."""


def read_json(text: str) -> JsonText:
    """Return the value of a text; never raises."""
    if len(text) > _MAX_CHARS:
        return JsonText(mistake=f"is longer than {_MAX_CHARS:,} characters")
    try:
        return _load(text)
    except (ValueError, RecursionError) as error:
        return _explain(text, cause_of(error))


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
    """Try each repair alone, then all of them on top of each other. What gives JSON names the mistake."""
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
        "has typographic quotes, which word processors insert",
        "Type straight quotes.",
    ),
    (_without_outer_quotes, "has an extra pair of quotes, and no shell removes them here", "Remove the outer quotes."),
    (
        lambda text: text.replace('\\"', '"'),
        "has a backslash before each quote, and no shell removes them here",
        "Remove the backslashes.",
    ),
    (
        _outside_strings(_SINGLE_QUOTED, lambda inner: json.dumps(inner.replace("\\'", "'"))),
        "has single quotes inside, as Python writes dictionaries",
        "Use double quotes inside the JSON and, in a shell, single quotes around the whole.",
    ),
    (
        _outside_strings(_PYTHON_WORD, lambda word: {"True": "true", "False": "false", "None": "null"}[word]),
        "has Python's True, False or None",
        "Write true, false and null instead.",
    ),
    (_outside_strings(_TRAILING_COMMA, lambda _: ""), "has a comma before a closing brace", "Remove that comma."),
    (
        _outside_strings(_BARE_WORD, json.dumps),
        "has no quotes around its words, perhaps because a shell removed them",
        "Put double quotes around every word, and single quotes around the whole.",
    ),
    (_with_closing_braces, "has an unclosed brace", "Close the last brace."),
)


_MAX_LISTED = 12
_HIDDEN = "(not shown)"
"""Stands for what must not travel into reports."""
_SECRETS = frozenset({"api_key", "hf_token"})
_CONFIG = re.compile(r"\w+Config(Args)?( \| None)?|dict\[.*\]")
"""Types whose JSON is read as a config: null is refused there, and must not pass for a flag that is not given."""
_BRACED = re.compile(r"\s*\{.*\}\s*", re.DOTALL)


class RefusedValue(Exception):  # noqa: N818  (argparse refuses a value)
    """A value that the release's parser rejects."""

    def __init__(self, ruling: Ruling, meant: Any = None) -> None:
        self.ruling = ruling
        self.meant = meant
        """The value that was probably meant; None where it cannot be told."""
        super().__init__(str(ruling))


def get_value(given: FlagUse, release: Release, findings: list[Finding]) -> Any:
    """Return the typed value of a flag; add findings about accepted but unusual values to `findings`.

    Raises:
        RefusedValue: the parser would stop here; the ruling says why.
    """
    row = given.row
    if given.field in _SECRETS:
        return _HIDDEN
    if row["kind"] == "switch":
        return given.option == given.name or given.option in row["aliases"]
    if not given.values:
        return True
    if row["kind"] == "list":
        return [_convert(given, text, release) for text in given.values]
    if row["kind"] == "json":
        return _read_json(given, findings)
    value = _convert(given, given.values[0], release)
    return [value] if given.appends else value


def _convert(given: FlagUse, text: str, release: Release) -> Any:
    kinds = set(re.findall(r"\w+", str(given.row["type"])))
    choices = given.row.get("choices")
    is_none = text in ("", "None") and takes_none(given.row)
    if is_none and not (choices and Rulebook(release.version).holds("none-is-no-choice")):
        return None
    if choices:
        return _choose(given, text, choices)
    try:
        if "int" in kinds and "lambda" not in kinds:
            return _read_int(given, text, release)
        return float(text) if "float" in kinds else text
    except (ValueError, OverflowError):
        kind = "a whole number" if "int" in kinds else "a number"
        raise _refuse(given, "bad-flag-value", f"{given.option} must be {kind}, got {text[:60]!r}.") from None


def _read_int(given: FlagUse, text: str, release: Release) -> int:
    if given.field not in HUMAN_READABLE:
        return int(text)
    if given.field == "max_model_len" and text.strip().lower() == "auto":
        if Rulebook(release.version).holds("max-model-len-auto"):
            return -1
        raise ValueError(text)
    return read_human_int(text)


def _choose(given: FlagUse, text: str, choices: Any) -> Any:
    loose = text.lower().replace("-", "_") if ".lower()" in str(given.row["type"]) else text
    for choice in choices:
        if str(choice) in (text, loose):
            return choice
    listed = ", ".join(str(choice) for choice in choices[:_MAX_LISTED])
    more = f" and {len(choices) - _MAX_LISTED} more" if len(choices) > _MAX_LISTED else ""
    raise _refuse(given, "not-a-choice", f"{text[:60]!r} is not a value of {given.option}: {listed}{more}.")


def _read_json(given: FlagUse, findings: list[Finding]) -> Any:
    text = given.values[0]
    if text in ("", "None") and takes_none(given.row):
        return None
    shell, fix = _SHELL_MISTAKES.get(given.mistake, ("", ""))
    if not shell and not _BRACED.fullmatch(text) and takes_text(given.row):
        return text
    found = read_json(text)
    if shell or found.mistake:
        raise _refuse(
            given,
            "flag-json-invalid",
            f"The value of {given.option} {shell or found.mistake}.",
            found.fix or fix,
            found.value,
        )
    findings += (
        get_rule("flag-json-duplicate").ruling(key=key[:60], where=given.word.where(given.option))
        for key in found.duplicates
    )
    return text if found.value is None and _CONFIG.fullmatch(str(given.row["type"])) else found.value


_SINGLE_QUOTES = "Put single quotes around the JSON."
_SHELL_MISTAKES: Mapping[str, tuple[str, str]] = {
    "unquoted-json": ("is unquoted JSON: the shell removes its double quotes and splits it at spaces", _SINGLE_QUOTES),
    "json-in-double-quotes": (
        "is JSON in double quotes: the shell ends the string at the first inner quote", _SINGLE_QUOTES,
    ),
    "split-by-systemd": (
        "is a variable written as $NAME: systemd removes its quotes and splits it at spaces", "Write ${NAME}.",
    ),
}  # fmt: skip


def _refuse(given: FlagUse, code: str, message: str, fix: str = "", meant: Any = None) -> RefusedValue:
    return RefusedValue(get_rule(code).ruling(message=message, where=given.word.where(given.option), fix=fix), meant)
