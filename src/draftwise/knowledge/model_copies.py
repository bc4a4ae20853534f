"""Finds the published model behind the name of a copy: quantized, or uploaded by someone else.

The rows of `data/model_copies.json` are name endings and their publishers, more certain rows first. A copy has its
base's architecture. Its weights differ; what a row does not say about them is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from draftwise.knowledge.models import KnownModel, find_model
from draftwise.knowledge.stored import read_data

_OWN = "own"
"""Stands in a row for the organization that published the base."""
_MTP = re.compile(r"-MTP(?=-|$)", re.IGNORECASE)
"""Says that a copy kept its base's prediction modules."""
UNKNOWN: Mapping[str, Any] = {"quant_method": None}
"""`quantization_config` of a copy with an unknown quantization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCopy:
    """A checkpoint that is a copy of a known model, by its name."""

    name: str
    base: KnownModel
    base_name: str
    """Name of the base in the copy's name."""
    what: str
    """Kind of copy, such as `an FP8 copy`."""
    config: Mapping[str, Any]
    """The base's config.json with the copy's own quantization."""
    is_gguf: bool = False
    has_known_weights: bool
    """Whether its quantization is known from its publisher's practice."""
    keeps_modules: bool
    """Whether it has its base's prediction modules: the base's publisher made it, or its name says so."""
    source: str


def find_names(name: str) -> tuple[str, ...]:
    """Return the names of a model's row and of its base's row; empty if unknown."""
    copy = _find_copy(name)
    rows = (find_model(name), None if copy is None else copy.base)
    return tuple(dict.fromkeys(each for row in rows if row is not None for each in row.names))


def find_copy(name: str) -> ModelCopy | None:
    """Return the copy that a name describes; None for a name in the table of models, or without a known base."""
    return _find_copy(name) if find_model(name) is None else None


@cache
def _find_copy(name: str) -> ModelCopy | None:
    bare = name.strip().partition(":")[0]
    organization, _, tail = bare.rpartition("/")
    marked = _MTP.search(tail) is not None
    shorter = _MTP.sub("", tail)
    for row in read_data("model_copies")["kinds"]:
        found = re.search(f"(?:{row['ending']})$", shorter, re.IGNORECASE)
        if found is None or found.start() == 0:
            continue
        base = _find_row(organization, shorter[: found.start()])
        if base is not None and _is_by(row.get("by"), organization, base[0]):
            is_own = _is_by((_OWN,), organization, base[0])
            return _make(name, base, row, keeps_modules=marked or is_own)
    return _find_mirrored(name, organization, shorter, marked=marked)


def _make(name: str, found: tuple[KnownModel, str], row: Mapping[str, Any], *, keeps_modules: bool) -> ModelCopy:
    base, base_name = found
    given = row.get("quantization_config", UNKNOWN)
    config = {key: value for key, value in base.config.items() if key != "quantization_config"}
    if given is not None:
        config["quantization_config"] = given
    return ModelCopy(
        name=name,
        base=base,
        base_name=base_name,
        what=row["what"],
        config=config,
        is_gguf=row.get("format") == "gguf",
        has_known_weights=given is not UNKNOWN,
        keeps_modules=keeps_modules,
        source=row["source"],
    )


def _find_mirrored(name: str, organization: str, tail: str, *, marked: bool) -> ModelCopy | None:
    for row in read_data("model_copies")["mirrors"]:
        if row["organization"].lower() == organization.lower() and (found := _find_row("", tail)) is not None:
            return ModelCopy(
                name=name,
                base=found[0],
                base_name=found[1],
                what="a copy",
                config=found[0].config,
                has_known_weights=True,
                keeps_modules=marked,
                source=row["source"],
            )
    return None


def _find_row(organization: str, tail: str) -> tuple[KnownModel, str] | None:
    """Return the row of a base, and which of its names it is, by what is left of its copy's name."""
    row, spelled = next(((row, each) for each in _spell(organization, tail) if (row := find_model(each))), (None, ""))
    if row is None:
        return None
    end = spelled.lower().rpartition("/")[2]
    return row, next((each for each in row.names if each.lower().rpartition("/")[2] == end), row.id)


def _spell(organization: str, tail: str) -> Iterator[str]:
    """Yield the names that a base may have: `bartowski/Qwen_Qwen3-8B` is of Qwen/Qwen3-8B."""
    if organization:
        yield f"{organization}/{tail}"
    yield tail
    yield tail.replace("_", "/", 1)
    yield f"Meta-{tail}"


def _is_by(publishers: list[str] | tuple[str, ...] | None, organization: str, base: KnownModel) -> bool:
    if publishers is None:
        return True
    own = base.id.partition("/")[0].lower()
    return any(organization.lower() == (own if each == _OWN else each.lower()) for each in publishers)
