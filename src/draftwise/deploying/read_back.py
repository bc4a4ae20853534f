"""Reads a written file back as any other file, and compares it with the order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from draftwise.core import Finding, InvalidSetup, Setup
from draftwise.setups.read import SourceText, read_setups

_GONE = object()
"""Stands for a key that is not there."""


def read_back(text: str, setup: Setup, *, name: str, lost: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Return each difference between what a file starts and the order; empty if there is no difference.

    Args:
        text: text of the file.
        setup: the ordered setup.
        name: name of the file, for messages; its suffix selects the reader.
        lost: fields that the format cannot hold.
    """
    source = SourceText(text=text, name=name)
    try:
        readings = read_setups(source)
        if not all(reading.setup.engine_version for reading in readings):
            # Nothing in the file says which release it is, e.g. an image with a tag of one's own.
            readings = read_setups(source, engine_version=setup.engine_version)
    except InvalidSetup as error:
        return error.findings
    if len(readings) != 1:
        return (_differs(f"{name} starts {len(readings)} servers instead of one.", name),)
    return tuple(compare_setups(setup, readings[0].setup, name=name, lost=lost))


def compare_setups(ordered: Setup, found: Setup, *, name: str, lost: tuple[str, ...] = ()) -> Iterator[Finding]:
    """Yield each field in which two setups differ."""
    for field in fields(Setup):
        if field.name in lost:
            continue
        before, after = (_normalize(field.name, getattr(setup, field.name)) for setup in (ordered, found))
        if isinstance(before, dict) and isinstance(after, dict):
            for key in (each for each in {**before, **after} if before.get(each, _GONE) != after.get(each, _GONE)):
                says, asked = (str(side[key]) if key in side else "nothing" for side in (after, before))
                yield _differs(f"{name} has {field.name} {key} {says}, but the order has {asked}.", name)
        elif before != after:
            yield _differs(f"{name} has {field.name} {after!r}, but the order has {before!r}.", name)


def _normalize(field: str, value: Any) -> Any:
    if field == "device":
        # Files carry the number of GPUs; their kind is on the node, and only a selector by its label names it.
        return None if value is None else (value.kind, value.count)
    if field in ("args", "env"):
        return dict(value)
    return value.to_dict() if field == "spec" and value is not None else value


def _differs(message: str, name: str) -> Finding:
    return Finding.error("not-as-ordered", message, where=name)
