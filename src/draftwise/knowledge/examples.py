"""Examples that meet the rules of vLLM, one a rule; the rows are in `data/examples.json`.

`python -m catalogue.examples` writes them; not every rule has one, as some need the weights of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExample:
    """What `draftwise check` is given, and the release in which it meets the rule."""

    vllm: str = ""
    """Empty where the files name a release, or none counts."""
    command: str
    """A server's command line, or the name of a file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of each file that the command reads."""


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule; None for one without."""
    row = _rows().get(code)
    return None if row is None else RuleExample(**row)


@cache
def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = read_rows("examples")
    return rows
