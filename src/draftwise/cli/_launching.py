"""The options that say how the servers are started that a measurement starts itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from draftwise.cli._options import add_options
from draftwise.core import LaunchOptions
from draftwise.measure.spec import ENGINES

__all__ = ["launch_options", "read_launch", "split_arguments"]

launch_options = add_options(
    click.option("--engine", type=click.Choice(ENGINES), default="draftwise", show_default=True,
                 help="What serves TARGET."),
    click.option("--vllm", default="vllm", show_default=True, metavar="COMMAND",
                 help="What starts vLLM: a path, `python -m vllm...`, `docker run ...`."),
    click.option("--gpus", metavar="ID[,ID...]", help="GPUs for the servers  [default: all]"),
    click.option("--one-at-a-time", is_flag=True,
                 help="Start and stop the servers in turn (A B, B A ...), for one GPU."),
    click.option("--serve-args", default="", metavar="ARGS", help="For the engine's `serve`, e.g. '--dtype float32'."),
)  # fmt: skip


def read_launch(given: Mapping[str, Any]) -> LaunchOptions:
    """Return what the options say; --switch and --leave are of those by which running servers are reached."""
    gpus = given["gpus"]
    return LaunchOptions(
        vllm=given["vllm"],
        gpus=None if gpus is None else tuple(each for each in gpus.split(",") if each),
        switch=given["switch"],
        leave=given["leave"],
    )


def split_arguments(text: str) -> tuple[str, ...]:
    """Return the words of --serve-args, as a shell splits them.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.UsageError(f"--serve-args {text!r} is no shell command line ({error}).") from None
