"""Several options of a verb as one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["add_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


def add_options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return what adds options and arguments to a verb, whose help shows them in this order."""

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add
