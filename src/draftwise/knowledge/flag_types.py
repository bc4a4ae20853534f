"""Types of flags by the texts that they accept, and flags of old guides that no covered release has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from draftwise.knowledge.stored import read_data

HUMAN_READABLE = frozenset(
    {
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "kv_cache_memory_bytes",
        "safetensors_prefetch_block_size",
        "max_num_queued_tokens",
    }
)
"""Fields of EngineArgs whose flags take numbers with a unit, such as 8k or 16G (`human_readable_int`)."""
SPEC_FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Engine flags that set a key of the speculative JSON."""
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BRACKETS = re.compile(r"\[[^|]*?\](?=\s*(?:\||$))")


def takes_none(row: Mapping[str, Any]) -> bool:
    """Return whether a flag reads `None`, or an empty text, as no value."""
    return not {"None", "optional_type"}.isdisjoint(re.findall(r"\w+", str(row["type"])))


def takes_text(row: Mapping[str, Any]) -> bool:
    """Return whether a JSON flag also accepts plain text, because its type is not only a dictionary."""
    kinds = str(row["type"])
    parts = {part.strip() for part in _BRACKETS.sub("", kinds).split("|")}
    return kinds == "HfOverrides" or ("dict" in parts and bool(parts - {"dict", "None"}))


def read_human_int(text: str) -> int:
    """Return the integer that vLLM reads: 1k is 1,000, 1.5k is 1,500 and 1K is 1,024.

    Raises:
        ValueError: not such a number; only decimal units allow fractions.
    """
    found = _WITH_UNIT.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, unit = found.groups()
    if unit.isupper():
        return int(number) * _UNITS[unit]
    try:
        return int(float(number) * _UNITS[unit])  # in floating point, as in vLLM: 32.3k is 32,299
    except OverflowError:
        raise ValueError(text) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFlag:
    """One flag, and the key of the speculative config that replaced it."""

    flag: str
    key: str
    kind: Literal["text", "int", "float", "switch"]
    note: str = ""
    """Why the key has no effect or no longer exists."""


@cache
def read_old_flags() -> Mapping[str, OldFlag]:
    """Return the old flags by their spelling with dashes."""
    rows = read_data("old_flags")
    return {row["flag"]: OldFlag(**row) for row in rows}
