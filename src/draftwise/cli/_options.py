"""Several options of a verb as one decorator, options whose text a verb reads, and one that verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from draftwise.core import InvalidRequest

__all__ = ["Parsed", "add_options", "context_option"]

_F = TypeVar("_F", bound=Callable[..., Any])


def add_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return what adds options and arguments to a verb, whose help shows them in this order."""

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Text that a function of the verbs reads; what the function refuses is an error of the option."""

    def __init__(self, read: Callable[[str], Any], name: str) -> None:
        self._read, self.name = read, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text says."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except InvalidRequest as error:
            self.fail(" ".join(each.message for each in error.findings), param, ctx)


context_option = click.option(
    "--context",
    "notes",
    multiple=True,
    metavar="KEY=VALUE",
    help="What cannot be seen from here: hardware, precision, model, hardware.ARM, command.ARM.",
)
"""What cannot be seen from here: while a run is measured, or afterwards."""
