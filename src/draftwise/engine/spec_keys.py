"""Whether a value fits a key of `--speculative-config`, by the type and the bounds that the facts have for it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.config_values import AUX_KEY
from draftwise.knowledge.spec_keys import SpecKey

__all__ = ["accepts", "describe"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a value must be."""

    text: str
    accepts: Callable[[Any], bool]


def accepts(key: SpecKey, value: Any) -> bool:
    """Say whether a key takes a value; a list that it takes has at least one entry."""
    if key.choices:
        return value in key.choices
    kind, is_list = _kind_of(key)
    if is_list:
        return isinstance(value, list | tuple) and len(value) > 0 and all(_fits(kind, key, each) for each in value)
    return _fits(kind, key, value)


def describe(key: SpecKey) -> str:
    """Return what a key takes, as the end of "must be"."""
    if key.choices:
        return f"one of {', '.join(key.choices)}"
    kind, is_list = _kind_of(key)
    bounds = " and ".join(f"{_BOUNDS[name][0]} {bound:g}" for name, bound in key.bounds.items())
    text = f"{kind.text} {bounds}".strip()
    return f"a list, each entry {text}" if is_list else text


def _kind_of(key: SpecKey) -> tuple[_Kind, bool]:
    """Return the kind of a key's value, or of the entries of the list that it takes, and whether it takes one."""
    name = key.type.removesuffix(" | None")
    entry = name.removeprefix("list[").removesuffix("]") if name.startswith("list[") else name
    return _KINDS[entry], entry != name


def _fits(kind: _Kind, key: SpecKey, value: Any) -> bool:
    return kind.accepts(value) and all(_BOUNDS[name][1](value, bound) for name, bound in key.bounds.items())


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_int, value))


def _is_layer_choice(value: Any) -> bool:
    """Whether a draft_model_config says which layers' states to extract, and nothing else."""
    config = value.get("hf_config") if isinstance(value, dict) else None
    ids = config.get(AUX_KEY) if isinstance(config, dict) else None
    return isinstance(ids, list | tuple) and len(ids) > 0 and all(_is_int(i) and i >= 0 for i in ids)


_KINDS: Mapping[str, _Kind] = {
    "int": _Kind("an integer", _is_int),
    "float": _Kind("a number", _is_number),
    "bool": _Kind("true or false", lambda value: isinstance(value, bool)),
    "str": _Kind("a string", lambda value: isinstance(value, str) and value != ""),
    "tuple[int, int, int]": _Kind("[integer, integer, integer]", _is_range),
    "layer ids": _Kind(f'{{"hf_config": {{"{AUX_KEY}": [layer, ...]}}}}', _is_layer_choice),
}

_BOUNDS: Mapping[str, tuple[str, Callable[[Any, float], bool]]] = {
    "ge": ("of at least", operator.ge),
    "gt": ("above", operator.gt),
    "le": ("of at most", operator.le),
    "lt": ("below", operator.lt),
}
