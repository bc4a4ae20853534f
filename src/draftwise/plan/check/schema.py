"""The JSON against the release's field table: unknown keys, wrong types, values out of range, repeated keys."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.rules import get_rule
from draftwise.facts.vllm import Span, history
from draftwise.plan.check.coerce import Mismatch, coerce
from draftwise.plan.check.context import SPEC_FLAGS, Context

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
    """The typed values of one speculative JSON, and what is wrong with it."""

    values: Mapping[str, Any]
    """Every field of the release: given values as vLLM reads them, defaults else. Faulty keys are absent."""
    given: frozenset[str]
    """Fields that the JSON or a `--spec-*` flag sets."""
    rulings: tuple[Ruling, ...]


def read_fields(context: Context) -> Fields:
    """Read a speculative JSON into the release's fields."""
    table = context.release.table("spec_fields")
    values = {name: row.get("default") for name, row in table.items()}
    rulings: list[Ruling] = list(_find_doubled(context))
    raw = _spell(context)
    for key, value in raw.items():
        if key not in table:
            rulings.append(_judge_unknown(context, key, table))
            continue
        fault = _judge_value(context, key, value, table[key], values)
        if fault is not None:
            values.pop(key, None)
            rulings.append(fault)
    return Fields(values=values, given=frozenset(raw) & frozenset(table), rulings=tuple(rulings))


def _spell(context: Context) -> Mapping[str, Any]:
    """Return the JSON with its keys as vLLM looks them up."""
    raw = context.spec or {}
    if not context.holds("dashed-key"):
        return raw
    return {key.replace("-", "_"): value for key, value in raw.items()}


def _find_doubled(context: Context) -> Iterator[Ruling]:
    rule = context.rule("spec-flag-repeats-key")
    if rule is None:
        return
    for flag in context.doubled:
        option, key = "--" + flag.replace("_", "-"), SPEC_FLAGS[flag]
        yield rule.ruling(
            f"is given twice: as {option} and as {key!r} in the JSON; vLLM refuses both together.",
            where=option,
            fix=f"Leave out {option}, or the key {key!r}.",
        )


def _judge_unknown(context: Context, key: str, table: Mapping[str, Any]) -> Ruling:
    rule = context.rule("unknown-key")
    said = "is not a key of this release"
    if rule is None:
        rule = get_rule("ignored-key")
        said += ", which ignores it without a word"
    return rule.ruling(f"{said}{_tell_history(history('spec_fields', key))}.", where=key, fix=_suggest_key(key, table))


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


def _judge_value(
    context: Context, key: str, value: Any, row: Mapping[str, Any], values: dict[str, Any]
) -> Ruling | None:
    """Put the value into `values` as vLLM reads it, or return what is wrong with it."""
    choices = row.get("choices")
    if key == "num_speculative_tokens" and context.holds("tokens-unvalidated"):
        values[key] = value
        return None
    if key == "attention_backend" and isinstance(value, str):
        value = None if value.lower() == "auto" else value.upper()
    try:
        values[key] = read = coerce(value, row["type"], choices)
    except Mismatch as mismatch:
        return _refuse(context, key, value, choices, str(mismatch))
    for name, (words, holds) in _LIMITS.items():
        limit = row.get(name)
        if limit is not None and read is not None and isinstance(read, (int, float)) and not holds(read, limit):
            return get_rule("value-out-of-range").ruling(
                f"must be {words} {limit}, got {json.dumps(value)}.", where=key, fix=f"Give a value {words} {limit}."
            )
    return None


def _refuse(context: Context, key: str, value: Any, choices: Sequence[Any] | None, wanted: str) -> Ruling:
    written = json.dumps(value)
    if not choices or not isinstance(value, str):
        return get_rule("wrong-type").ruling(f"must be {wanted}, got {written}.", where=key, fix=f"Give {wanted}.")
    near = get_close_matches(value.lower(), [str(each) for each in choices], n=1, cutoff=0.6)
    fix = f'Did you mean "{near[0]}"?' if near else "Use one of " + _shorten(choices) + "."
    if key == "method":
        known = _tell_history(history("methods", value))
        return get_rule("unknown-method").ruling(
            f"{written} is no method of vLLM {context.release}{known}.", where=key, fix=fix
        )
    return get_rule("unknown-choice").ruling(f"{written} is not allowed in vLLM {context.release}.", where=key, fix=fix)


def _shorten(choices: Sequence[Any]) -> str:
    """Return the choices as text, without the old names of mtp and cut after a dozen or so."""
    shown = [str(each) for each in choices if not str(each).endswith("_mtp")]
    return ", ".join(shown[:_SHOWN_CHOICES]) + (", ..." if len(shown) > _SHOWN_CHOICES else "")
