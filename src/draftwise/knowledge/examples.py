"""Examples that trigger rules of vLLM and findings, one per code.

The rows of `data/examples.json` run whenever their pages are built; `python -m catalogue.examples` maintains them.
Those of `data/seen.json` need more than files, and come from tests (`python -m catalogue.seen`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftwise.knowledge.stored import read_rows

_SHOWN: Mapping[str, str] = {"safetensors": "its tensors with type and shape", "gguf": "its metadata"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExample:
    """A command whose answer depends on the rule, and the release in which it does."""

    vllm: str = ""
    """Release to judge by; empty if the files name one, or if it does not matter."""
    command: str = ""
    """Input of `draftwise check`: a server's command line, or the name of a file. Or a whole `draftwise ...` command.
    Empty if `tested` names a test of a part of draftwise."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of each file that the command reads; for weights, their header as JSON."""
    says: str = ""
    """Its output in the test that `tested` names."""
    tested: str = ""
    """Test that checks this output, e.g. `tests/cli/test_watch.py::test_a_server_is_away`."""

    @property
    def test(self) -> str:
        """Its test in words, with the file."""
        name = self.tested.rpartition("::test_")[2].partition("[")[0].replace("_", " ")
        return f'the test "{name}" of {self.tested.partition("::")[0]}'

    @property
    def line(self) -> str:
        """The command to type."""
        if self.tested or self.command.startswith("draftwise "):
            return self.command
        return " ".join(["draftwise check", *(["--vllm", self.vllm] if self.vllm else []), self.command])

    def titles(self) -> Iterator[tuple[str, str]]:
        """Yield the title and text of each file."""
        for name, text in self.files.items():
            about = _SHOWN.get(name.rpartition(".")[2])
            yield (f"{name}, {about}" if about else name), text


def find_example(code: str) -> RuleExample | None:
    """Return the example of a rule or finding; None if the code has none."""
    row = read_examples().get(code) or read_seen().get(code)
    return None if row is None else RuleExample(**row)


def read_examples() -> Mapping[str, dict[str, Any]]:
    """Return the runnable examples, by code."""
    rows: dict[str, dict[str, Any]] = read_rows("examples")
    return rows


def read_seen() -> Mapping[str, dict[str, Any]]:
    """Return the examples from tests, by code."""
    rows: dict[str, dict[str, Any]] = read_rows("seen")
    return rows
