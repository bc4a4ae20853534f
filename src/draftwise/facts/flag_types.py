"""What the type of a flag in a release's table says about the texts that it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["takes_none", "takes_text"]

_BRACKETS = re.compile(r"\[[^|]*?\](?=\s*(?:\||$))")


def takes_none(row: Mapping[str, Any]) -> bool:
    """Say whether a flag reads `None`, and an empty text, as no value."""
    return not {"None", "optional_type"}.isdisjoint(re.findall(r"\w+", str(row["type"])))


def takes_text(row: Mapping[str, Any]) -> bool:
    """Say whether a JSON flag also takes plain text: its type names something else beside a dictionary."""
    kinds = str(row["type"])
    parts = {part.strip() for part in _BRACKETS.sub("", kinds).split("|")}
    return kinds == "HfOverrides" or ("dict" in parts and bool(parts - {"dict", "None"}))
