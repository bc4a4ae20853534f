"""`draftwise verify`: compares files, or a running server, with the decided and ordered setup."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwise.cli._findings import render, show_judgements
from draftwise.cli._options import options
from draftwise.verbs.verify import VerifyRequest
from draftwise.verbs.verify import verify as run_verify

__all__ = ["render", "verify"]


@click.command()
@click.argument("source", required=False)
@options("verify", of=VerifyRequest, expected=click.FloatRange(min=1))
def verify(shape: str, as_json: bool, **given: Any) -> None:
    """List the differences between SOURCE and the deployed setup."""
    result = run_verify.run(VerifyRequest(**given))
    show_judgements(result, "json" if as_json else shape)
    if shape == "table" and not as_json:
        for text, command in result.commands:
            click.echo(f"# {text}\n{command}")
    if result.exit_code:
        sys.exit(result.exit_code)
