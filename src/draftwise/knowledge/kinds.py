"""Schemas of Kubernetes' own kinds and of projects' kinds, reduced to the parts that draftwise checks.

`python -m catalogue.schemas` makes the archive from the projects' CustomResourceDefinitions and from Kubernetes' own
OpenAPI document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from packaging.version import Version

from draftwise.knowledge.stored import read_bytes

_ARCHIVE = "schemas/kinds.zip"
_INDEX = "index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """One kind in one version of its API."""

    api_version: str
    kind: str
    since: str
    """First minor release of its project with this schema; empty if it is used for all of them."""
    source: str
    """Repository, commit and path of the CustomResourceDefinition; or package, version and path of the schema."""
    licence: str
    file: str
    """The archive's file name."""


@cache
def list_kinds() -> Sequence[ResourceKind]:
    """Return every kind, older schemas first."""
    rows = json.loads(_open().read(_INDEX))
    return tuple(ResourceKind(api_version=row.pop("apiVersion"), **row) for row in rows)


def find_kind(api_version: str, kind: str, release: str = "") -> ResourceKind | None:
    """Return a kind as a release of its project has it; None if unknown.

    Args:
        api_version: such as `serving.kserve.io/v1beta1`.
        kind: such as `InferenceService`.
        release: release of the project, such as `0.16.1`; by default the newest known one.
    """
    found = [each for each in list_kinds() if (each.api_version, each.kind) == (api_version, kind)]
    if release:
        found = [each for each in found if not each.since or Version(each.since) <= Version(release)]
    return found[-1] if found else None


@cache
def read_schema(kind: ResourceKind) -> Mapping[str, Any]:
    """Return the schema of a kind as JSON Schema."""
    schema: Mapping[str, Any] = json.loads(_open().read(kind.file))
    return schema


def _open() -> ZipFile:
    return ZipFile(BytesIO(read_bytes(_ARCHIVE)))
