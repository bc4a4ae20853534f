"""Options of a training method: declared with default and meaning, given as `name=value`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from draftwise.core import InvalidSetup

__all__ = ["Option", "learn_from", "resolve_options"]

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting; its type is that of its default."""

    name: str
    default: bool | int | float | str | tuple[int, ...]
    """A tuple is given as text with commas."""
    help: str
    """What it does, and the source of its default."""
    least: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, value: Any) -> Any:
        """Return a value, or the text of one, in the option's type.

        Raises:
            ValueError: its type or value is not allowed; the message says what is.
        """
        parsed = self._parse(value)
        if self.choices and parsed not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        numbers = parsed if isinstance(parsed, tuple) else (parsed,)
        if self.least is not None and min(numbers, default=self.least) < self.least:
            raise ValueError(f"must be at least {self.least:g}")
        return parsed

    def _parse(self, value: Any) -> Any:
        if isinstance(self.default, bool):
            if str(value).lower() not in _WORDS:
                raise ValueError("must be true or false")
            return _WORDS[str(value).lower()]
        if isinstance(self.default, tuple):
            parts = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(int(part) for part in parts)
        try:
            return type(self.default)(value)
        except (TypeError, ValueError):
            raise ValueError(f"must be of type {type(self.default).__name__}") from None


def learn_from(text: str) -> Option:
    """Return the option on what heads learn that the papers taught with the text alone; `text` says how theirs do."""
    return Option(
        name="learn_from",
        default="distribution",
        choices=("distribution", "tokens"),
        help=f"What is learnt: the target's distribution, or {text}.",
    )


def resolve_options(declared: Iterable[Option], given: Mapping[str, Any], *, method: str) -> dict[str, Any]:
    """Return a value for every declared option.

    Args:
        declared: the method's.
        given: values by name, as text or in their own type.
        method: named in messages.

    Raises:
        InvalidSetup: a name is not declared, or a value is not allowed.
    """
    options = {option.name: option for option in declared}
    values = {name: option.default for name, option in options.items()}
    for name, value in given.items():
        if name not in options:
            near = get_close_matches(name, options, 1)
            fix = f"Did you mean {near[0]}?" if near else f"It has {', '.join(options) or 'none'}."
            raise InvalidSetup.because("unknown-option", f"{method} has no option {name!r}.", where=name, fix=fix)
        try:
            values[name] = options[name].read(value)
        except ValueError as error:
            raise InvalidSetup.because(
                "bad-option", f"{name} {error}, got {value!r}.", where=name, fix=options[name].help
            ) from None
    return values
