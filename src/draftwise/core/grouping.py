"""Groups values by a key, and copies fields that two dataclasses share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def group_by(key: Callable[[_V], _K], values: Iterable[_V]) -> dict[_K, list[_V]]:
    """Return the values by key, both in the order in which they occur."""
    groups: dict[_K, list[_V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def copy_fields(kind: type[_V], source: object, **others: Any) -> _V:
    """Return a value of a dataclass: its fields come from `others`, else from the source's fields of the same name."""
    dataclass: Any = kind
    names = (each.name for each in fields(dataclass) if each.name not in others)
    return kind(**{name: getattr(source, name) for name in names}, **others)
