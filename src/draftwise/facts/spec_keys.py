"""Keys of `--speculative-config`: what each means, what it takes, and whether the embedded engine acts on it.

Type, default and bounds are those of the newest vLLM release that has the key (`facts.vllm`); the rest lies in
`data/spec_keys.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from draftwise.facts.stored import read_data
from draftwise.facts.vllm import history, releases

__all__ = ["SpecKey", "keys_where", "name_traps", "spec_keys"]

Embedded = Literal["acts", "idle", "unknown"]
_BOUNDS = ("ge", "gt", "le", "lt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecKey:
    """One key."""

    name: str
    meaning: str
    embedded: Embedded
    """`acts` in the embedded engine; `idle`: it is taken and changes nothing; `unknown`: it is no setting there."""
    reason: str
    """Why it is idle; empty for others."""
    type: str
    """As vLLM annotates it, such as `list[float] | None`."""
    default: Any
    choices: tuple[str, ...]
    """Values of a key that takes one of a few; empty for others."""
    bounds: Mapping[str, float]
    """`ge`, `gt`, `le`, `lt` -> the bound, of the value or of each entry of a list."""
    source: str
    """Release, file and symbol of the field."""


@cache
def spec_keys() -> Mapping[str, SpecKey]:
    """Return every key that some release has, by name."""
    return MappingProxyType({row["name"]: _read(row) for row in read_data("spec_keys")})


def keys_where(*, embedded: Embedded) -> Mapping[str, SpecKey]:
    """Return the keys that act, are idle or are unknown in the embedded engine, by name."""
    return {name: key for name, key in spec_keys().items() if key.embedded == embedded}


def name_traps() -> Iterator[str]:
    """Yield what makes the newest vLLM take a drafter with it in its name for a head, whatever `method` says."""
    inference = releases()[-1].table("method_inference")
    return (rule["name"] for method in inference["order"] for rule in inference[method] if "name" in rule)


def _read(row: Mapping[str, Any]) -> SpecKey:
    """Return the key of a row; `takes` is what code behind the field, or the embedded engine, narrows it to."""
    field = history("spec_fields", row["name"])[-1]
    taken = {**field.value, **row.get("takes", {})}
    return SpecKey(
        name=row["name"],
        meaning=row["meaning"],
        embedded=row["embedded"],
        reason=row.get("reason", ""),
        type=taken["type"],
        default=taken.get("default"),
        choices=tuple(taken.get("choices", ())),
        bounds=MappingProxyType({name: taken[name] for name in _BOUNDS if name in taken}),
        source=field.source,
    )
