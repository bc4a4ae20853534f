"""Prompts to measure with, as values with an identity."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

__all__ = ["Prompt", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request to send: plain text to continue, or chat messages to answer."""

    id: str
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    """Given instead of `text`; sent to the chat endpoint."""
    max_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON line, as a workload file has it."""
        content = {"messages": list(self.messages)} if self.messages else {"prompt": self.text}
        return {"id": self.id, **content, "max_tokens": self.max_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A named list of prompts, sent in this order."""

    name: str
    source: str
    """Where it came from: `bundled` or a file name."""
    prompts: tuple[Prompt, ...]

    @property
    def sha256(self) -> str:
        """Hash of exactly what is sent: two runs with equal hashes measured the same prompts."""
        lines = [json.dumps(prompt.to_dict(), sort_keys=True) for prompt in self.prompts]
        return sha256("\n".join(lines).encode()).hexdigest()

    def first(self, count: int | None) -> Workload:
        """Return the workload cut to its first `count` prompts (None: all of them)."""
        return Workload(name=self.name, source=self.source, prompts=self.prompts[:count])
