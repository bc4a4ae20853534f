"""Command lines that meet the rules of vLLM, one a rule; the rows are in `data/examples.json`.

`python -m catalogue.examples` writes them; not every rule has one, as some need files of a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExample:
    """A server's command line, and the release in which it meets the rule."""

    vllm: str
    command: str


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule; None for one without."""
    row = _rows().get(code)
    return None if row is None else RuleExample(**row)


@cache
def _rows() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = read_rows("examples")
    return rows
