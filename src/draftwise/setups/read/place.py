"""The place of a server in its text, for surroundings that a `Setup` cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Literal

Form = Literal["object", "values", "services", "unit", "command"]
"""An object of Kubernetes, values of a chart, a compose file, a unit of systemd, or the options of `docker run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server's place in the text that starts it."""

    form: Form
    value: Any = None
    """The whole document as read: a mapping; for a unit, its settings (section, name, value); for a command, its
    options (name, value)."""
    path: tuple[str | int, ...] = ()
    """Path of the container, or of its entry, inside the document."""
    others: Sequence[Any] = ()
    """The other documents of the same text."""
    folder: FilePath = FilePath()
    """Folder of the text, for relative paths."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Known variables among those that the document refers to."""
