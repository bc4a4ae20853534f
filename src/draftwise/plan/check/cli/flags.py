"""Engine flags as `vllm serve` reads them: flags that the release does not have, and values that its parser refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from draftwise.core import Ruling
from draftwise.facts.old_flags import read_old_flags
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release, history
from draftwise.plan.check.steps import Step

__all__ = ["read_flags"]

_HUMAN = frozenset(
    {
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "kv_cache_memory_bytes",
        "safetensors_prefetch_block_size",
        "max_num_queued_tokens",
    }
)
"""Flags that take numbers with a unit, such as 32k."""
_FREE = frozenset({"quantization"})
"""Flags whose declared choices the parser does not enforce: the config does."""
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")


def read_flags(release: Release, args: Mapping[str, Any]) -> Step[Mapping[str, Any]]:
    """Return the flags as the engine gets them, and yield what the command line parser refuses.

    Args:
        release: whose parser reads them.
        args: by field name, as text or typed; None stands for a flag that is not given.
    """
    rules = Rulebook(release.version)
    by_field = {row["field"]: row for row in release.table("flags").values()}
    read: dict[str, Any] = {}
    for name, value in args.items():
        row = by_field.get(name)
        if row is None:
            yield from _find_unknown(rules, release, name, by_field)
        elif value is not None:
            try:
                read[name] = _read(name, row, value, takes_auto=rules.holds("length-auto"))
            except ValueError as fault:
                yield from rules.ruling(
                    "flag-value",
                    f"{_spell(name)} {fault}",
                    where=_spell(name),
                    fix=f"See `vllm serve --help={name}` of that release.",
                )
    return read


def _spell(name: str) -> str:
    return "--" + name.replace("_", "-")


def _find_unknown(rules: Rulebook, release: Release, name: str, known: Mapping[str, Any]) -> Iterator[Ruling]:
    flag = _spell(name)
    spans = history("flags", flag)
    if (old := read_old_flags().get(flag)) is not None:
        fix = f'Write it into --speculative-config as "{old.key}".' if not old.note else f"Remove it: {old.note}."
    elif near := get_close_matches(name, known, n=1, cutoff=0.8):
        fix = f"Did you mean {_spell(near[0])}?"
    else:
        fix = "Remove it."
    told = f"; it exists from {spans[0].since} to {spans[-1].until or 'now'}" if spans else ""
    yield from rules.ruling("flag-unknown", f"{flag} is not a flag of vLLM {release}{told}.", where=flag, fix=fix)


def _read(name: str, row: Mapping[str, Any], value: Any, *, takes_auto: bool) -> Any:
    """Return a value as the parser hands it on.

    Args:
        name: field of the flag.
        row: the release's row on it.
        value: text or typed.
        takes_auto: whether the release lets max_model_len be `auto`.

    Raises:
        ValueError: the parser refuses it; the text says why, and the flag is its subject.
    """
    if row["kind"] != "value" or name in _FREE:
        return value
    declared = row["type"].removesuffix(" | None")
    if declared == "int":
        if takes_auto and name == "max_model_len" and str(value).strip().lower() == "auto":
            return -1
        return _read_int(value, human=name in _HUMAN)
    if declared == "float":
        return _read_float(value)
    choices = row.get("choices")
    if choices and isinstance(value, str) and value not in choices and "str" not in declared.split(" | "):
        near = get_close_matches(value.lower(), [str(each) for each in choices], n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}" if near else ""
        raise ValueError(f"must be one of {', '.join(map(str, choices))}, got {value!r}{hint}.")
    return value


def _read_int(value: Any, *, human: bool) -> int:
    text = str(value).strip()
    if isinstance(value, bool):
        raise ValueError("needs a number.")
    match = _WITH_UNIT.fullmatch(text) if human else None
    try:
        if match is None:
            return int(text)
        number, unit = match.groups()
        return int(float(number) * _UNITS[unit]) if unit.islower() else int(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"needs an integer, got {value!r}.") from None


def _read_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("needs a number.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"needs a number, got {value!r}.") from None
