"""Examples that meet the rules of vLLM, one a rule; the rows are in `data/examples.json`.

`python -m catalogue.examples` checks them, and writes those that it finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExample:
    """What `draftwise` is given, and the release in which it meets the rule."""

    verb: str = "check"

    vllm: str = ""
    """Empty where the files name a release, or none counts."""
    command: str
    """A server's command line, or the name of a file; of other verbs, their words."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of each file that is read; of a safetensors file, its tensors as JSON: name -> [type, *shape]."""

    @property
    def line(self) -> str:
        """The whole command."""
        return " ".join(("draftwise", self.verb, *(("--vllm", self.vllm) if self.vllm else ()), self.command))


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule; None for one without."""
    row = _rows().get(code)
    return None if row is None else RuleExample(**row)


@cache
def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = read_rows("examples")
    return rows
