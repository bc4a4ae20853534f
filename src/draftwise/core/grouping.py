"""Groups values by a common key, and copies fields that two dataclasses have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def group_by(key: Callable[[_V], _K], values: Iterable[_V]) -> dict[_K, list[_V]]:
    """Return the values by their keys: keys in the order in which they are met, values in theirs."""
    groups: dict[_K, list[_V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def copy_fields(kind: type[_V], source: object, **others: Any) -> _V:
    """Return a value of a dataclass: its fields are the source's of the same names, but for those that are given."""
    dataclass: Any = kind
    names = (each.name for each in fields(dataclass) if each.name not in others)
    return kind(**{name: getattr(source, name) for name in names}, **others)
