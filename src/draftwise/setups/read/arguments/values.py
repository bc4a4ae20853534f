"""The values of flags, with the types that a release's parser gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftwise.core import Finding, Ruling
from draftwise.knowledge.flag_types import HUMAN_READABLE, read_human_int, takes_none, takes_text
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.arguments.flags import Given
from draftwise.setups.read.arguments.json_text import read_json

__all__ = ["Refused", "get_value"]

_MAX_LISTED = 12
_HIDDEN = "(not shown)"
"""Stands for what must not travel into reports."""
_SECRETS = frozenset({"api_key", "hf_token"})
_CONFIG = re.compile(r"\w+Config(Args)?( \| None)?")
"""Types whose JSON is read as a config: null is refused there, and must not pass for a flag that is not given."""
_BRACED = re.compile(r"\s*\{.*\}\s*", re.DOTALL)


class Refused(Exception):  # noqa: N818  (argparse refuses a value)
    """A value that the release's parser does not take."""

    def __init__(self, ruling: Ruling, meant: Any = None) -> None:
        self.ruling = ruling
        self.meant = meant
        """The value that was probably meant; None where it cannot be told."""
        super().__init__(str(ruling))


def get_value(given: Given, release: Release, findings: list[Finding]) -> Any:
    """Return the value of a flag with its type; what is odd about it and still taken is added to `findings`.

    Raises:
        Refused: the parser would stop here; the ruling says why.
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


def _convert(given: Given, text: str, release: Release) -> Any:
    kinds = set(re.findall(r"\w+", str(given.row["type"])))
    if text in ("", "None") and takes_none(given.row):
        return None
    choices = given.row.get("choices")
    if choices:
        return _choose(given, text, choices)
    try:
        if "int" in kinds and "lambda" not in kinds:
            return _read_int(given, text, release)
        return float(text) if "float" in kinds else text
    except (ValueError, OverflowError):
        kind = "a whole number" if "int" in kinds else "a number"
        raise _refuse(given, "bad-flag-value", f"{given.option} must be {kind}, got {text[:60]!r}.") from None


def _read_int(given: Given, text: str, release: Release) -> int:
    if given.field not in HUMAN_READABLE:
        return int(text)
    if given.field == "max_model_len" and text.strip().lower() == "auto":
        if Rulebook(release.version).holds("max-model-len-auto"):
            return -1
        raise ValueError(text)
    return read_human_int(text)


def _choose(given: Given, text: str, choices: Any) -> Any:
    loose = text.lower().replace("-", "_") if ".lower()" in str(given.row["type"]) else text
    for choice in choices:
        if str(choice) in (text, loose):
            return choice
    listed = ", ".join(str(choice) for choice in choices[:_MAX_LISTED])
    more = f" and {len(choices) - _MAX_LISTED} more" if len(choices) > _MAX_LISTED else ""
    raise _refuse(given, "not-a-choice", f"{text[:60]!r} is not among the values of {given.option}: {listed}{more}.")


def _read_json(given: Given, findings: list[Finding]) -> Any:
    text = given.values[0]
    if text in ("", "None") and takes_none(given.row):
        return None
    shell = _SHELL_MISTAKES.get(given.mistake)
    if not shell and not _BRACED.fullmatch(text) and takes_text(given.row):
        return text
    found = read_json(text)
    if shell or found.mistake:
        raise _refuse(
            given,
            "flag-json-invalid",
            f"The value of {given.option} {shell or found.mistake}.",
            found.fix or "Put single quotes around the JSON.",
            found.value,
        )
    findings += (
        get_rule("flag-json-duplicate").ruling(key=key[:60], where=given.word.where(given.option))
        for key in found.duplicates
    )
    return text if found.value is None and _CONFIG.fullmatch(str(given.row["type"])) else found.value


_SHELL_MISTAKES: Mapping[str, str] = {
    "unquoted-json": "is JSON without quotes around it: the shell takes its quotes away and splits it at spaces",
    "json-in-double-quotes": "is JSON in double quotes: the shell takes the inner quotes for the end of the outer ones",
}


def _refuse(given: Given, code: str, message: str, fix: str = "", meant: Any = None) -> Refused:
    return Refused(get_rule(code).ruling(message=message, where=given.word.where(given.option), fix=fix), meant)
