"""Reads the data files of the package, under `facts/data`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

__all__ = ["freeze", "read_bytes", "read_data", "read_folder"]


def read_data(name: str) -> Any:
    """Return the content of `data/NAME.json`; callers cache what they make of it."""
    return json.loads(files("draftwise.facts").joinpath(f"data/{name}.json").read_text(encoding="utf-8"))


def read_bytes(path: str) -> bytes:
    """Return a file of `data` as it is."""
    return files("draftwise.facts").joinpath(f"data/{path}").read_bytes()


def read_folder(name: str) -> Mapping[str, Any]:
    """Return the files of `data/NAME`, in the order of their names: each file's name and content."""
    folder = files("draftwise.facts").joinpath(f"data/{name}")
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in found}


def freeze(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with tuples for its lists, as the fields of frozen values have them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
