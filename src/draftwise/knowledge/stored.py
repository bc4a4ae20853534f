"""Reads the data files of the package, under `knowledge/data`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).with_name("data")


@cache
def read_data(name: str) -> Any:
    """Return the content of `data/NAME.json`, read once and shared: do not change it."""
    return json.loads(read_bytes(f"{name}.json"))


@cache
def read_rows(name: str) -> Any:
    """Likewise, with tuples for the lists in objects, as fields of frozen values need."""
    return json.loads(read_bytes(f"{name}.json"), object_hook=_freeze)


def read_bytes(path: str) -> bytes:
    """Return a file of `data` as it is."""
    return (_DATA / path).read_bytes()


def read_folder(name: str) -> Mapping[str, Any]:
    """Return name and content (as from `read_rows`) of the files of `data/NAME`, sorted by name."""
    found = sorted((_DATA / name).glob("*.json"))
    return {file.name: json.loads(file.read_bytes(), object_hook=_freeze) for file in found}


def _freeze(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
