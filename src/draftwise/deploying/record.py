"""What a folder of files is for, as the verbs that come after `deploy` read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from draftwise.core import UnreadableSource
from draftwise.deploying.twin import Pool

__all__ = ["BASELINE", "DEPLOYMENT", "SETUP", "Record", "Side", "read_record", "write_record"]

DEPLOYMENT = "deployment.json"
SETUP = "setup.json"
BASELINE = "baseline.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the twins."""

    file: str
    """Inside the folder."""
    name: str
    """Of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was rendered, and for which platform."""

    to: str
    """One of `plan.TARGETS`."""
    platform_release: str
    """Of the project that defines the objects' kinds; empty for the newest that is known."""
    startup_s: int
    """How long a start may take."""
    leaves: str
    """What stays behind after the service with speculation was taken away, a sentence."""
    sides: Mapping[Pool, Side]


def write_record(record: Record) -> str:
    """Return a record as JSON."""
    sides = {pool: asdict(side) for pool, side in record.sides.items()}
    given = {"format": 1, "to": record.to, "platform_release": record.platform_release, "startup_s": record.startup_s}
    given["leaves"] = record.leaves
    return json.dumps(given | sides, indent=1) + "\n"


def read_record(folder: Path) -> Record:
    """Return the record of a folder that `deploy` wrote.

    Raises:
        UnreadableSource: it is none.
    """
    try:
        given = json.loads((folder / DEPLOYMENT).read_text(encoding="utf-8"))
        sides: dict[Pool, Side] = {"spec": Side(**given["spec"]), "plain": Side(**given["plain"])}
        return Record(
            to=given["to"],
            platform_release=given["platform_release"],
            startup_s=int(given["startup_s"]),
            leaves=str(given["leaves"]),
            sides=sides,
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UnreadableSource.because(
            "not-a-deployment",
            f"{folder} is no folder that `draftwise deploy` wrote: its {DEPLOYMENT} cannot be read "
            f"({type(error).__name__}).",
            where=str(folder),
            fix="Name the folder that --out named, or a manifest with --setup.",
        ) from None
