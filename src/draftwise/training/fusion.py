"""Compiled forms of small functions, shared by all callers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch

__all__ = ["choose_compiled"]

_F = TypeVar("_F", bound=Callable[..., Any])


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def choose_compiled(function: _F, *, fuse: bool) -> _F:
    """Return the function, or with `fuse` its compiled form: a few kernels instead of one for each operation."""
    return _compiled(function) if fuse else function  # type: ignore[return-value]
