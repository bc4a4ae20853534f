"""By which marks of a config.json and of its tensors' names a drafter's method is known: the columns of its row."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from draftwise.checkpoints.roles import MTP, role_of
from draftwise.knowledge.methods import Method, methods_where

__all__ = ["find_by_architecture", "find_by_marks"]


def find_by_architecture(architecture: str) -> Method | None:
    """Return the first method of which an architecture's name contains a part, None if it contains none."""
    name = architecture.lower()
    return _first(lambda method: any(part in name for part in method.architectures))


def find_by_marks(config: Mapping[str, Any], architecture: str, names: Collection[str]) -> Method:
    """Return the method of a checkpoint; that of draft models for a whole language model, which may be a target.

    Args:
        config: config.json, plain.
        architecture: the first that it names; empty for none. Some names, such as `LlamaForCausalLM`, say nothing.
        names: of its tensors.
    """
    return (
        _first(lambda method: config.get("model_type") in method.model_types)
        or find_by_architecture(architecture)
        or _find_by_tensors(names)
        or _first(lambda method: any(key in config for key in method.config_keys))
        or next(iter(methods_where(drafts_from="own_model").values()))
    )


def _find_by_tensors(names: Collection[str]) -> Method | None:
    if names and all(role_of(name) == MTP for name in names):
        return next(iter(methods_where(weights="target").values()))
    return _first(lambda method: any(_begins(names, re.compile(pattern)) for pattern in method.tensors))


def _begins(names: Collection[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.match(name) for name in names)


def _first(has_mark: Callable[[Method], bool]) -> Method | None:
    """Return the first method with a mark, in the order of their table: the more telling marks go before others."""
    return next(filter(has_mark, methods_where().values()), None)
