"""`draftwise schema`: JSON Schemas of `--speculative-config` in a release and of the verbs' JSON output."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.verbs import VERBS
from draftwise.verbs.schema import SchemaRequest, SchemaResult
from draftwise.verbs.schema import schema as run_schema


@click.command()
@click.argument("verb", required=False, metavar="[VERB]", type=click.Choice([*sorted(VERBS), "error"]))
@options("schema", of=SchemaRequest)
def schema(**given: Any) -> None:
    """Print the JSON Schema of --speculative-config in a vLLM release, for editors to complete and check it."""
    show(run_schema.run(SchemaRequest(**given)), render, as_json=True)


def render(console: Console, result: SchemaResult) -> None:
    """Print the schema."""
    console.print(json.dumps(result.to_dict(), indent=1), markup=False, highlight=False, soft_wrap=True)
