"""What the type of a flag in a release's table says about the texts that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HUMAN_READABLE", "read_human_int", "takes_none", "takes_text"]

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
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BRACKETS = re.compile(r"\[[^|]*?\](?=\s*(?:\||$))")


def takes_none(row: Mapping[str, Any]) -> bool:
    """Say whether a flag reads `None`, and an empty text, as no value."""
    return not {"None", "optional_type"}.isdisjoint(re.findall(r"\w+", str(row["type"])))


def takes_text(row: Mapping[str, Any]) -> bool:
    """Say whether a JSON flag also takes plain text: its type names something else beside a dictionary."""
    kinds = str(row["type"])
    parts = {part.strip() for part in _BRACKETS.sub("", kinds).split("|")}
    return kinds == "HfOverrides" or ("dict" in parts and bool(parts - {"dict", "None"}))


def read_human_int(text: str) -> int:
    """Return the integer that vLLM reads: 1k is 1,000, 1.5k is 1,500 and 1K is 1,024.

    Raises:
        ValueError: it is none; fractions go with the decimal units only.
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
