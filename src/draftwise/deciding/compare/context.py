"""What differs between two measurements besides their numbers, and whether that was meant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from draftwise.deciding.interchange import Results

__all__ = ["KINDS", "ContextDifference", "find_context_differences"]

KINDS = ("version", "model", "hardware", "software", "command", "speculation", "workload", "parameters", "tool")
"""What two measurements can differ in; a name in a context begins with its kind."""
_KIND_OF = {
    "tokenizer": "model",
    "endpoint": "parameters",
    "num_prompts": "workload",
    "data": "workload",
    "seed": "parameters",
    "request_rate": "parameters",
    "burstiness": "parameters",
    "max_concurrency": "parameters",
    "ramp_up": "parameters",
    "temperature": "parameters",
}
"""Names that other tools' results have."""
_NO_MATTER = ("date", "label", "software.draftwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDifference:
    """One thing that is not the same, or is known on one side only."""

    kind: str
    """Of KINDS."""
    name: str
    before: Any
    """None where it is not known."""
    after: Any
    asked: bool
    """Whether this is what was changed on purpose."""


def find_context_differences(before: Results, after: Results, asked: Collection[str]) -> tuple[ContextDifference, ...]:
    """Return what differs.

    What only one side knows counts, unless the sides are of different tools, each of which records its own things.
    """
    found = []
    if before.tool != after.tool:
        found.append(_difference("tool", "tool", before.tool, after.tool, asked))
    for name in dict.fromkeys((*before.context, *after.context)):
        old, new = before.context.get(name), after.context.get(name)
        if old != new and not name.startswith(_NO_MATTER) and not _only_a_tool_knows(before, after, name):
            found.append(_difference(_kind(name, before.tool), name, old, new, asked))
    return tuple(found)


def _difference(kind: str, name: str, before: Any, after: Any, asked: Collection[str]) -> ContextDifference:
    return ContextDifference(kind=kind, name=name, before=before, after=after, asked=kind in asked)


def _only_a_tool_knows(before: Results, after: Results, name: str) -> bool:
    """Tell whether a name is missing on one side because another tool does not record it."""
    return before.tool != after.tool and None in (before.context.get(name), after.context.get(name))


def _kind(name: str, tool: str) -> str:
    first = name.partition(".")[0]
    if name == "version" and tool != "draftwise":
        # Other load generators record their own version, not the server's.
        return "tool"
    return _KIND_OF.get(first, first if first in KINDS else "parameters")
