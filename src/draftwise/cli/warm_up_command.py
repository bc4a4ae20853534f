"""`draftwise warm-up`: compiles the kernels that a server will need ahead of time, into a folder."""

from __future__ import annotations

import logging
from typing import Any

import click
from rich.console import Console

from draftwise.cli._engine import PhaseLines, engine_options, split_settings
from draftwise.cli._options import options
from draftwise.cli._results import json_option, show
from draftwise.verbs.warm_up import WarmUpRequest, WarmUpResult
from draftwise.verbs.warm_up import warm_up as run_warm_up


@click.command("warm-up")
@click.argument("model", type=click.Path())
@options("warm_up", of=WarmUpRequest)
@engine_options
@json_option
def warm_up(as_json: bool, **given: Any) -> None:
    """Compile the kernels that `draftwise serve MODEL` needs with the same flags, without serving."""
    request = WarmUpRequest(**split_settings(given))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    with PhaseLines(says_to_stderr=as_json) as phases:
        result = run_warm_up.run(request, phases)
    show(result, render, as_json=as_json)


def render(console: Console, result: WarmUpResult) -> None:
    """Print what was compiled, and how to use it."""
    line = (
        f"{result.out}: {result.num_kernels} kernels, {result.num_bytes / 2**20:.1f} MiB, in {result.seconds:.1f} s. "
        f"Serve with: --kernel-cache {result.out}"
    )
    console.print(line, markup=False, highlight=False, soft_wrap=True)
