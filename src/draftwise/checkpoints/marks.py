"""By which marks of a config.json and of its tensors' names a drafter's method is known: the columns of its row."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from draftwise.checkpoints.roles import MTP, role_of
from draftwise.knowledge.methods import Method, all_methods, methods_where

__all__ = ["find_by_architecture", "find_by_marks", "holds_native_modules"]


def find_by_architecture(architecture: str) -> Method | None:
    """Return the first method of which an architecture's name contains a part, None if it contains none."""
    return _find_architecture(methods_where().values(), architecture)


def find_by_marks(config: Mapping[str, Any], architecture: str, names: Collection[str]) -> Method:
    """Return the method of a checkpoint; that of draft models for a whole language model, which may be a target.

    Args:
        config: config.json, plain.
        architecture: the first that it names; empty for none. Some names, such as `LlamaForCausalLM`, say nothing.
        names: of its tensors.

    Raises:
        InvalidSetup: no method of the table has its marks, and an installed package's method cannot be used.
    """
    return (
        _find_marked(methods_where().values(), config, architecture, names)
        or _find_marked([each for each in all_methods().values() if each.distribution], config, architecture, names)
        or next(iter(methods_where(drafts_from="own_model").values()))
    )


def _find_marked(
    methods: Collection[Method], config: Mapping[str, Any], architecture: str, names: Collection[str]
) -> Method | None:
    """Return the method of which a checkpoint has a mark: the more telling marks of all methods go before others."""
    return (
        _first(methods, lambda method: config.get("model_type") in method.model_types)
        or _find_architecture(methods, architecture)
        or _first(methods, lambda method: any(_begins(names, re.compile(pattern)) for pattern in method.tensors))
        or _first(methods, lambda method: any(key in config for key in method.config_keys))
        or _first(methods, lambda method: bool(method.recognizer) and method.load("recognizer")(config, names))
    )


def _find_architecture(methods: Collection[Method], architecture: str) -> Method | None:
    name = architecture.lower()
    return _first(methods, lambda method: any(part in name for part in method.architectures))


def _begins(names: Collection[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.match(name) for name in names)


def _first(methods: Collection[Method], has_mark: Callable[[Method], bool]) -> Method | None:
    return next(filter(has_mark, methods), None)


def holds_native_modules(_config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Say whether a checkpoint holds nothing but modules for multi-token prediction, out of its target's."""
    return bool(names) and all(role_of(name) == MTP for name in names)
