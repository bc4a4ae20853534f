"""Examples that meet rules of vLLM and findings, one a code; the rows are in `data/examples.json`.

`python -m catalogue.examples` keeps them, and looks for those of new rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_rows

_SHOWN: Mapping[str, str] = {"safetensors": "its tensors with type and shape", "gguf": "its metadata"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExample:
    """A command whose answer depends on the rule, and the release in which it does."""

    vllm: str = ""
    """Empty where the files name a release, or none counts."""
    command: str
    """What `draftwise check` is given: a server's command line, or the name of a file. Or a whole `draftwise ...`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of each file that the command reads; of weights, JSON of their header."""

    @property
    def line(self) -> str:
        """The command to type."""
        if self.command.startswith("draftwise "):
            return self.command
        return " ".join(["draftwise check", *(["--vllm", self.vllm] if self.vllm else []), self.command])

    def titles(self) -> Iterator[tuple[str, str]]:
        """Yield what to call each file, and its text."""
        for name, text in self.files.items():
            about = _SHOWN.get(name.rpartition(".")[2])
            yield (f"{name}, {about}" if about else name), text


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule or finding; None for a code without."""
    row = _rows().get(code)
    return None if row is None else RuleExample(**row)


@cache
def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = read_rows("examples")
    return rows
