"""The form that every stage of `check` has: a generator of what it finds, which returns what the next one starts from.

    spec = yield from infer_method(context, spec)

reads like vLLM's own code, keeps the findings in its order, and changes no value. Rules that lead to no new value are
plain iterators of rulings, named `find_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from draftwise.core import Ruling

__all__ = ["Step", "collect", "run"]

_T = TypeVar("_T")
Step = Generator[Ruling, None, _T]


def collect(step: Step[_T]) -> tuple[tuple[Ruling, ...], _T]:
    """Run a step to its end and return what it found, and what it returned."""
    found: list[Ruling] = []
    value = run(step, found.append)
    return tuple(found), value


def run(step: Step[_T], tell: Callable[[Ruling], None]) -> _T:
    """Run a step to its end, tell what it finds as it finds it, and return what it returns."""
    while True:
        try:
            tell(next(step))
        except StopIteration as end:
            value: _T = end.value
            return value
