"""What a completion must match, with vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from draftwise.core import InvalidSetup

__all__ = ["StructuredOutputsParams"]

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_ELSEWHERE = ("disable_additional_properties", "structural_tag")
"""What vLLM takes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """One of five ways to say what a completion must match from its first token to its last.

    Raises:
        InvalidSetup: none or several of them are given, or one is not what it must be.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as text or object."""
    regex: str | None = None
    """Of the whole completion; the dialect of Rust's regex crate, without look-around."""
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """Context-free, in llguidance's Lark dialect or in GBNF."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """For JSON: no whitespace between its parts."""
    whitespace_pattern: str | None = None
    """For JSON: a regex of what may stand between its parts; None: up to 40 characters of whitespace."""

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise _invalid(
                f"structured_outputs needs one of {', '.join(_KINDS)}; "
                + (f"it has {' and '.join(given)}." if given else "it has none.")
            )
        value = getattr(self, given[0])
        if given[0] == "choice":
            is_right = isinstance(value, list | tuple) and bool(value) and all(isinstance(each, str) for each in value)
        else:
            is_right = isinstance(value, {"json": str | Mapping, "json_object": bool}.get(given[0], str))
        if not is_right:
            raise _invalid(f"structured_outputs.{given[0]} must be {_NOUNS[given[0]]}, got {type(value).__name__}.")
        if type(self.disable_any_whitespace) is not bool:
            raise _invalid("structured_outputs.disable_any_whitespace must be true or false.")
        if not isinstance(self.whitespace_pattern, str | None):
            raise _invalid("structured_outputs.whitespace_pattern must be a string.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> StructuredOutputsParams:
        """Return what a request's `structured_outputs` object says; null counts as not given.

        Raises:
            InvalidSetup: it has an unknown key, or see the class.
        """
        present = {name: value for name, value in given.items() if value is not None}
        known = [each.name for each in fields(cls)]
        for name in present.keys() - set(known):
            if name in _ELSEWHERE:
                raise _invalid(f"structured_outputs.{name} is not supported by the embedded engine.", "Leave it out.")
            raise _invalid(f"structured_outputs has no {name!r}.", f"Known: {', '.join(known)}.")
        return cls(**present)

    @property
    def kind(self) -> str:
        """Which of the ways it is."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    @property
    def key(self) -> str:
        """A text that is the same for the same requirement."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, default=dict)


_NOUNS = {
    "json": "a JSON schema, as a string or an object",
    "regex": "a string",
    "choice": "a list of strings, not empty",
    "grammar": "a string",
    "json_object": "true or false",
}


def _invalid(message: str, fix: str = "") -> InvalidSetup:
    return InvalidSetup.because("bad-structured-outputs", message, where="structured_outputs", fix=fix)
