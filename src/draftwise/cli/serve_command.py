"""`draftwise serve`: runs an OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

import logging
from typing import Any

import click
from rich.console import Console

from draftwise.cli._engine import PhaseLines, engine_options, split_settings
from draftwise.cli._options import Duration, options
from draftwise.cli._results import json_option, show
from draftwise.verbs.serve import TOOL_CALL_PARSERS, ServeRequest, ServeResult
from draftwise.verbs.serve import serve as run_serve


@click.command()
@click.argument("model", type=click.Path())
@options("serve", of=ServeRequest, tool_call_parser=click.Choice(TOOL_CALL_PARSERS), drain_seconds=Duration(0, 86400))
@engine_options
@json_option
def serve(as_json: bool, **given: Any) -> None:
    """Serve MODEL, the directory of a Hugging Face checkpoint or a GGUF file, over OpenAI-compatible HTTP."""
    request = ServeRequest(**split_settings(given))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    with PhaseLines(says_to_stderr=as_json) as phases:
        result = run_serve.run(request, phases)
    if as_json:
        show(result, render, as_json=True)


def render(console: Console, result: ServeResult) -> None:
    """Print which model was served."""
    console.print(f"{result.model} is no longer served.", markup=False, highlight=False)
