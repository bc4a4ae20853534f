"""Keys of `--speculative-config`: their meaning, their values, and whether the embedded engine acts on them.

Type, default and bounds come from the newest vLLM release that has the key (`knowledge.vllm`); the rest is in
`data/spec_keys.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from draftwise.knowledge.methods import Remembers
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import history, releases

Embedded = Literal["acts", "idle", "unknown"]
_BOUNDS = ("ge", "gt", "le", "lt")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecKey:
    """One key."""

    name: str
    meaning: str
    embedded: Embedded
    """Effect in the embedded engine: `acts`, `idle` (accepted without effect) or `unknown` (rejected)."""
    reason: str
    """Why it is idle; empty otherwise."""
    type: str
    """vLLM's annotation, such as `list[float] | None`."""
    default: Any
    choices: tuple[str, ...]
    """Allowed values, if they are few; else empty."""
    bounds: Mapping[str, float]
    """`ge`, `gt`, `le`, `lt` -> bound on the value, or on each entry of a list."""
    source: str
    """Release, file and symbol of the field."""
    remembers: Remembers
    """What a server with this key keeps from a request to draft for later ones, with any method."""


@cache
def read_spec_keys() -> Mapping[str, SpecKey]:
    """Return every key that some release has, by name."""
    return MappingProxyType({row["name"]: _read(row) for row in read_data("spec_keys")})


def keys_where(*, embedded: Embedded) -> Mapping[str, SpecKey]:
    """Return the keys that act, are idle or are unknown in the embedded engine, by name."""
    return {name: key for name, key in read_spec_keys().items() if key.embedded == embedded}


def find_name_traps() -> Iterator[str]:
    """Yield words in a drafter's name that make the newest shipped vLLM treat it as a head, with any `method`."""
    newest = next(release for release in reversed(releases()) if release.added is None)
    inference = newest.table("method_inference")
    return (rule["name"] for method in inference["order"] for rule in inference[method] if "name" in rule)


def _read(row: Mapping[str, Any]) -> SpecKey:
    """Return the key of a row, narrowed to the values that vLLM's code or the embedded engine accepts (`takes`)."""
    field = history("spec_fields", row["name"], shipped=True)[-1]
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
        remembers=row.get("remembers", "nothing"),
    )
