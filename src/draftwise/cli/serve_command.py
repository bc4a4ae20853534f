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


@click.command(short_help="Serve a model over OpenAI-compatible HTTP.")
@click.argument("model", type=click.Path())
@options("serve", of=ServeRequest, tool_call_parser=click.Choice(TOOL_CALL_PARSERS), drain_seconds=Duration(0, 86400))
@engine_options
@json_option
def serve(as_json: bool, **given: Any) -> None:
    """Serve MODEL, the directory of a Hugging Face checkpoint or a GGUF file, over OpenAI-compatible HTTP.

    Endpoints: /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, /health, /ping, /load,
    /version, /openapi.json and /metrics with vLLM's metric names. As in vLLM, the checkpoint's generation_config.json
    sets the defaults of requests. The server accepts requests once kernels are compiled and graphs captured (to do that
    ahead of time, use draftwise warm-up). The engine runs in a separate process, on one GPU. For more GPUs, use vLLM:
    -tp 2 prints the command.
    """
    request = ServeRequest(**split_settings(given))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    with PhaseLines(says_to_stderr=as_json) as phases:
        result = run_serve.run(request, phases)
    if as_json:
        show(result, render, as_json=True)


def render(console: Console, result: ServeResult) -> None:
    """Print which model was served."""
    console.print(f"{result.model} is no longer served.", markup=False, highlight=False)
