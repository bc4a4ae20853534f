"""Keys of `--speculative-config`: meaning, values, effect on the engine, and whether drafts improve with traffic.

Type, default and bounds come from the newest vLLM release that has the key (`knowledge.vllm`); the rest is in
`data/spec_keys.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from draftwise.core import Arm, SpecConfig
from draftwise.knowledge.methods import Method, Remembers, find_method, find_placeholder, methods_where
from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import history, releases


def find_remembering(arms: Sequence[Arm]) -> dict[str, str]:
    """Return why candidates (all arms but the first) could remember answers, by name; those that cannot are left out.

    The operator's config of a running server is taken as its config; when the run is judged, it is compared with what
    the server reports.
    """
    reasons = {arm.name: find_memory(arm.spec) for arm in arms[1:]}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def find_memory(spec: SpecConfig | None) -> str | None:
    """Return why a server with this config could remember answers from request to request; None if it cannot.

    An unknown method, option or config (None) counts as one that could.
    """
    if spec is None:
        return "its speculative config is unknown"
    return next(_list_reasons(spec), None)


def _list_reasons(spec: SpecConfig) -> Iterator[str]:
    methods = _find_methods(spec)
    if not methods:
        yield f"it is unknown what {_quote(spec.method)} keeps from one request to the next"
    for method in methods:
        if method.remembers == "unknown":
            yield f"it is unknown what {method.name} keeps from one request to the next"
        elif method.remembers == "answers" and not _is_off(method, spec):
            off = ", ".join(f"{key} {value}" for key, value in method.forgets_with.items())
            yield f"{method.name} drafts from what it answered before" + (f"; {off} turns that off" if off else "")
    keys = read_spec_keys()
    for name, value in spec.options.items():
        if name not in keys:
            yield f"the effect of its option {_quote(name)} is unknown"
        elif keys[name].remembers != "nothing" and value:
            yield f"{name} may use what it saw in earlier requests"


def _find_methods(spec: SpecConfig) -> tuple[Method, ...]:
    """Return the method of a config, or those that it can come to be; none where nothing is known of it.

    Without the key `method`, vLLM goes by the model: a word that stands for a method, or a drafter's checkpoint.
    """
    if spec.method is not None:
        found = find_method(spec.method)
    elif (found := find_placeholder(spec.model)) is None and spec.model is not None:
        return tuple(method for method in methods_where().values() if method.has_weights)
    return () if found is None else (found,)


def _is_off(method: Method, spec: SpecConfig) -> bool:
    wanted = method.forgets_with
    return bool(wanted) and all(spec.options.get(key) == value for key, value in wanted.items())


def _quote(name: str | None) -> str:
    return "a config without a method" if name is None else repr(name)


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
