"""The option that tells what cannot be seen from here: while a run is measured, or afterwards."""

from __future__ import annotations

import click

__all__ = ["context_option"]

context_option = click.option(
    "--context",
    "notes",
    multiple=True,
    metavar="KEY=VALUE",
    help="What cannot be seen from here: hardware, precision, model, hardware.ARM, command.ARM.",
)
