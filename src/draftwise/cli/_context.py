"""The option that tells what cannot be seen from here: while a run is measured, or afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import click

__all__ = ["context_option", "read_notes"]

context_option = click.option(
    "--context",
    "notes",
    multiple=True,
    metavar="KEY=VALUE",
    help="What cannot be seen from here: hardware, precision, model, hardware.ARM, command.ARM.",
)


def read_notes(texts: Sequence[str]) -> dict[str, str]:
    """Return the notes by key.

    Raises:
        UsageError: one has no value.
    """
    notes = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--context takes KEY=VALUE, got {text!r}.")
        notes[key.strip()] = value.strip()
    return notes
