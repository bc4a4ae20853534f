"""The JSON against the release's field table: unknown keys, wrong types, values out of range, repeated keys."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.vllm import Span, history
from draftwise.plan.check.cli.coerce import Mismatch, coerce
from draftwise.plan.check.context import SPEC_FLAGS, Context
from draftwise.plan.check.steps import Step

__all__ = ["Fields", "read_fields"]

_LIMITS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "gt": ("greater than", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "le": ("at most", operator.le),
}
_SHOWN_CHOICES = 14


@dataclass(frozen=True, slots=True)
class Fields:
    """The typed values of one speculative JSON."""

    values: Mapping[str, Any]
    """Every field of the release: given values as vLLM reads them, defaults else. Faulty keys are absent."""
    given: frozenset[str]
    """Fields that the JSON or a `--spec-*` flag sets."""
    faulty: frozenset[str]
    """Fields whose value the release refuses."""


def read_fields(context: Context) -> Step[Fields]:
    """Read a speculative JSON into the release's fields, and yield what is wrong with it."""
    table = context.release.table("spec_fields")
    values = {name: row.get("default") for name, row in table.items()}
    yield from _find_doubled(context)
    raw = context.keys if context.holds("dashed-key") else context.spec or {}
    for key, value in raw.items():
        if key not in table:
            yield from _find_unknown(context, key, table)
            continue
        try:
            values[key] = _read(context, key, value, table[key])
        except _OutOfRange as limit:
            del values[key]
            yield from _find_out_of_range(context, key, value, limit)
        except Mismatch as mismatch:
            del values[key]
            yield from _find_mismatch(context, key, value, table[key].get("choices"), mismatch)
    faulty = frozenset(table) - frozenset(values)
    return Fields(values=values, given=frozenset(raw) & frozenset(table), faulty=faulty)


def _find_doubled(context: Context) -> Iterator[Ruling]:
    for flag in context.doubled:
        option, key = "--" + flag.replace("_", "-"), SPEC_FLAGS[flag]
        yield from context.ruling(
            "spec-flag-repeats-key",
            f"{option} is also given as the key {key!r} of the JSON; vLLM refuses both together.",
            where=option,
            fix=f"Leave out {option}, or the key {key!r}.",
        )


def _find_unknown(context: Context, key: str, table: Mapping[str, Any]) -> Iterator[Ruling]:
    said = f"{key} is not a key of the speculative config in vLLM {context.release}"
    since = _tell_history(history("spec_fields", key))
    fix = _suggest_key(key, table)
    yield from context.ruling("unknown-key", f"{said}{since}.", where=key, fix=fix)
    yield from context.ruling("ignored-key", f"{said}, which ignores it without a warning{since}.", where=key, fix=fix)


def _tell_history(spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    first, last = spans[0], spans[-1]
    until = f" to {last.until}" if last.until is not None else " on"
    return f"; it exists from {first.since}{until}"


def _suggest_key(key: str, table: Mapping[str, Any]) -> str:
    near = get_close_matches(key.replace("-", "_"), table, n=1, cutoff=0.7)
    if near:
        return f"Did you mean {near[0]!r}?"
    return "Remove it from the JSON."


def _read(context: Context, key: str, value: Any, row: Mapping[str, Any]) -> Any:
    """Return a value as vLLM reads it; Mismatch or _OutOfRange where it is refused."""
    if key == "num_speculative_tokens" and context.holds("tokens-unvalidated"):
        return value
    if key == "attention_backend" and isinstance(value, str):
        value = None if value.lower() == "auto" else value.upper()
    read = coerce(value, row["type"], row.get("choices"))
    for name, (words, is_within) in _LIMITS.items():
        limit = row.get(name)
        if limit is not None and isinstance(read, (int, float)) and not is_within(read, limit):
            raise _OutOfRange(f"{words} {limit}")
    return read


class _OutOfRange(ValueError):  # noqa: N818  (as Mismatch)
    """The value is of the right type and beyond a limit, which the message says."""


def _find_out_of_range(context: Context, key: str, value: Any, limit: _OutOfRange) -> Iterator[Ruling]:
    message = f"{key} must be {limit}, got {json.dumps(value)}."
    yield from context.ruling("value-out-of-range", message, where=key, fix=f"Give a value {limit}.")


def _find_mismatch(
    context: Context, key: str, value: Any, choices: Sequence[Any] | None, mismatch: Mismatch
) -> Iterator[Ruling]:
    written = json.dumps(value)
    if not choices or not isinstance(value, str):
        message = f"{key} must be {mismatch}, got {written}."
        yield from context.ruling("wrong-type", message, where=key, fix=f"Give {mismatch}.")
        return
    near = get_close_matches(value.lower(), [str(each) for each in choices], n=1, cutoff=0.6)
    fix = f'Did you mean "{near[0]}"?' if near else "Use one of " + _shorten(choices) + "."
    if key == "method":
        since = _tell_history(history("methods", value))
        message = f"{written} is not a method of vLLM {context.release}{since}."
        yield from context.ruling("unknown-method", message, where=key, fix=fix)
    else:
        message = f"{key} cannot be {written} in vLLM {context.release}."
        yield from context.ruling("unknown-choice", message, where=key, fix=fix)


def _shorten(choices: Sequence[Any]) -> str:
    """Return the choices as text, without the old names of mtp and cut after a dozen or so."""
    shown = [str(each) for each in choices if not str(each).endswith("_mtp")]
    return ", ".join(shown[:_SHOWN_CHOICES]) + (", ..." if len(shown) > _SHOWN_CHOICES else "")
