"""Groups values in lists by a common key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def group_by(key: Callable[[_V], _K], values: Iterable[_V]) -> dict[_K, list[_V]]:
    """Return the values by their keys: keys in the order in which they are met, values in theirs."""
    groups: dict[_K, list[_V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
