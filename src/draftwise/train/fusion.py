"""Compiled forms of small functions, shared by all that call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

__all__ = ["fused"]

_F = TypeVar("_F", bound=Callable[..., Any])


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def fused(function: _F, *, wanted: bool) -> _F:
    """Return the function, or if wanted its compiled form: few kernels instead of one for each operation."""
    return _compiled(function) if wanted else function  # type: ignore[return-value]
