"""Which combinations of parameters, and how many draws, a test runs: enough, or all where that is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

_ON_CPU = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu") == "cpu"
EVERY_CASE = os.environ.get("DRAFTWISE_EVERY_CASE", "0" if _ON_CPU else "1") == "1"
"""A GPU runs each combination in no time, and compiles different code for it; an interpreter takes long."""


def tries(number: int) -> int:
    """Return how often a law is tried on what is drawn: a third of `number`, all of them with EVERY_CASE."""
    return number if EVERY_CASE else number // 3


def covering(*axes: Sequence[Any], together: int = 2) -> list[tuple[Any, ...]]:
    """Return few combinations of values, one of each axis, in which any values of `together` axes meet.

    With two together it is what is known as pairwise testing. With EVERY_CASE they are all combinations.
    """
    every = list(product(*(range(len(axis)) for axis in axes)))
    chosen = every
    if not EVERY_CASE:
        parts = {case: set(combinations(enumerate(case), together)) for case in every}
        missing, chosen = set[Any]().union(*parts.values()), []
        while missing:
            chosen.append(max(every, key=lambda case: len(parts[case] & missing)))
            missing -= parts[chosen[-1]]
    return [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in sorted(chosen)]


def taking_turns(names: Sequence[Any], situations: Sequence[Any], *, each: int = 1) -> list[tuple[Any, Any]]:
    """Return every name with `each` of the situations, which take turns; with EVERY_CASE with all of them.

    For what holds of names and of situations apart: every one of both is met, and not every meeting of two.
    """
    if EVERY_CASE:
        return list(product(names, situations))
    return [(name, situations[(each * i + j) % len(situations)]) for i, name in enumerate(names) for j in range(each)]
