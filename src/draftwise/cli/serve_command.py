"""`draftwise serve`: runs an OpenAI-compatible server over the embedded engine."""

from __future__ import annotations

import logging
from typing import Any

import click
from rich.console import Console

from draftwise.cli._engine import PhaseLines, engine_options, split_settings
from draftwise.cli._options import Duration, option
from draftwise.cli._results import json_option, show
from draftwise.verbs.serve import TOOL_CALL_PARSERS, ServeRequest, ServeResult
from draftwise.verbs.serve import serve as run_serve


@click.command(short_help="Serve a model over OpenAI-compatible HTTP.")
@click.argument("model", type=click.Path())
@option("--speculative-config JSON", "-sc", "The speculative config, as for vLLM; omit it for plain decoding.")
@option("--host ADDRESS", "Address to listen on.", default="127.0.0.1", show_default=True)
@option("--port", "Port to listen on; 0 picks a free one.",
        default=8000, show_default=True, type=click.IntRange(0, 65535))  # fmt: skip
@option("--served-model-name NAME", "Name in the API and in metrics  [default: MODEL]")
@option("--api-key KEY", "API key that all endpoints except probes require.  [env: DRAFTWISE_API_KEY]",
        envvar="DRAFTWISE_API_KEY")  # fmt: skip
@option("--enable-auto-tool-choice", "Let the model choose to call tools.", is_flag=True)
@option("--tool-call-parser", "Format of tool calls in the model's answers.", type=click.Choice(TOOL_CALL_PARSERS))
@option("--allow-remote", "Allow a --host that other machines can reach.", is_flag=True)
@option("--allowed-hosts NAME", "Host name that clients use; * allows any.", multiple=True)
@option("--allowed-origins URL", "Origin of a web page that may use the server.", multiple=True)
@option("--drain-seconds", "Time for running requests after SIGTERM.",
        default=10.0, show_default=True, type=Duration(0, 86400))  # fmt: skip
@option("--max-waiting", "Longest queue; beyond it, requests get 503.",
        default=1024, show_default=True, type=click.IntRange(0))  # fmt: skip
@option("--kernel-cache DIR", "Folder of compiled kernels, read and extended.  [env: DRAFTWISE_KERNEL_CACHE]",
        envvar="DRAFTWISE_KERNEL_CACHE")  # fmt: skip
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
