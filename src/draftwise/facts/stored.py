"""Reads the data files that lie in the package, under `facts/data`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

__all__ = ["read_data"]


def read_data(name: str) -> Any:
    """Return the content of `data/NAME.json`; the callers keep what they make of it."""
    return json.loads(files("draftwise.facts").joinpath(f"data/{name}.json").read_text(encoding="utf-8"))
