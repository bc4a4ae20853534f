"""`draftwise check`: predicts how a vLLM release treats a speculative config, before it runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwise.cli._findings import quiet_line, render, show_judgements
from draftwise.cli._options import options
from draftwise.cli._setups import report_skipped, setup_command
from draftwise.verbs.check import CheckRequest
from draftwise.verbs.check import check as run_check

__all__ = ["check", "render"]


@setup_command(short_help="Predict what a vLLM release makes of a speculative config.")
@options("check", of=CheckRequest)
def check(shape: str, as_json: bool, quiet: bool, verbose: bool, installed: str | None, **given: Any) -> None:
    """Predict whether vLLM accepts, rejects or silently changes a setup, or fails later, with a fix for each problem.

    SOURCE is a model (a directory with config.json, or a well-known id), a compose file, Kubernetes or KServe YAML, a
    JSON or JSONL file of configs, a folder or pattern of such files, `-` for standard input, or a whole command line,
    in quotes or word by word at the end. check loads nothing, and downloads only what --hub or --config-from asks for.

    The exit code is 0 if no finding reaches --fail-on, 1 if one does, and 2 if a source does not exist or cannot be
    opened. A setup with an unknown target, drafter or GPU is not judged in full, never accepted. That is exit code 0,
    or 1 with --fail-on unknown.

    \b
    Examples:
      draftwise check meta-llama/Llama-3.1-8B-Instruct --vllm 0.19.1 \\
          -sc '{"method": "ngram", "num_speculative_tokens": 5}' -- --tensor-parallel-size 2
      draftwise check compose.yaml --vllm 0.33.0 --format sarif > check.sarif
      draftwise check 'vllm serve Qwen/Qwen3-8B --speculative-config {...}'
      helm template my-release my-chart | draftwise check - --quiet
    """
    packages = None if installed is None else installed.split(",")
    result = run_check.run(CheckRequest(**given, installed=packages))
    report_skipped(result.skipped, verbose=verbose)
    if quiet and shape == "table" and not as_json:
        click.echo("\n".join(map(quiet_line, result.judgements)))
    else:
        show_judgements(result, "json" if as_json else shape)
    if result.exit_code:
        sys.exit(result.exit_code)
