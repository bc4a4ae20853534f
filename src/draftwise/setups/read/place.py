"""The place of a server in its text: the surroundings that a `Setup` has no field for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

Form = Literal["object", "values", "services", "unit", "command"]
"""An object of Kubernetes, values of a chart, a compose file, a unit of systemd, or the options of `docker run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server's place in the text that starts it."""

    form: Form
    value: Any = None
    """The whole document as it was read: a mapping; of a unit its settings (section, name, value); of a command its
    options (name, value)."""
    path: tuple[str | int, ...] = ()
    """Path inside the document of the container, or of the entry that stands for it."""
    others: Sequence[Any] = ()
    """The other documents of the same text."""
    folder: FilePath = FilePath()
    """Where the text lies, from which its relative paths count."""
