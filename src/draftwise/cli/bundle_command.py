"""`draftwise bundle`: a setup's weights and what they need in one folder, for machines without a way to the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._findings import render_findings
from draftwise.cli._results import json_option, show
from draftwise.core import InvalidSetup
from draftwise.verbs.bundle import BundleRequest, BundleResult
from draftwise.verbs.bundle import bundle as run_bundle

__all__ = ["bundle", "render"]

_VERIFY = "verify"


class _BundleGroup(click.Group):
    """Two commands, of which `make` is meant where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `make` in front of a source."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["make", *args])


@click.group(cls=_BundleGroup, short_help="Put a setup's weights into one folder for an air gap, and prove it there.")
def bundle() -> None:
    """Put the weights of a setup into one folder, with what a machine without a way to the hub needs to serve them.

    \b
    Examples:
      draftwise bundle make deploy/ --out bundle/
      draftwise bundle make setup.json --out bundle/ --from meta-llama/Llama-3.1-8B-Instruct=/data/llama
      draftwise bundle verify bundle/
    """


@bundle.command(short_help="Write a bundle; `make` can be left out.")
@click.argument("setup", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A new folder.")
@click.option("--from", "sources", multiple=True, metavar="NAME=DIR",
              help="Where a checkpoint lies  [default: a directory of its name, else the hub's cache]")  # fmt: skip
@click.option("--image", default="", metavar="IMAGE@DIGEST", help="Of the server  [default: vLLM's own, by its tag]")
@click.option("--modelcar", default="models:1", show_default=True, metavar="IMAGE", help="To be made of the weights.")
@click.option("--claim", default="models", show_default=True, metavar="NAME", help="To be filled with the weights.")
@click.option("--wheel", "wheels", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A package that the method needs and the image lacks.")  # fmt: skip
@click.option("--mirror", default="", metavar="URL|modelscope",
              help="Where models come from there  [default: from nowhere, offline]")  # fmt: skip
@json_option
def make(sources: Sequence[str], as_json: bool, **given: Any) -> None:
    """Write the bundle of SETUP: a folder of `draftwise deploy`, or a setup.json.

    Checkpoints are looked at first: missing shards or tensors, a missing tokenizer, pointers that Git left, links that
    lead elsewhere. An interrupted command goes on where it was when it is given again; DIR appears when it is whole.
    """
    request = BundleRequest(**given, sources=dict(map(_read_source, sources)))
    show(run_bundle.run(request), render, as_json=as_json)


@bundle.command(name=_VERIFY, short_help="Prove that a bundle is what was written, and whole.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Prove every file of DIR by its sum, and look at its checkpoints as `inspect` does.

    The exit code is 1 if something is wrong, and 2 if DIR is no bundle.
    """
    show(run_bundle.run(BundleRequest(folder, verify=True)), render, as_json=as_json)


def render(console: Console, result: BundleResult) -> None:
    """Print what was written or verified, and the findings."""
    line = f"{result.folder} is {'not ' if result.is_wrong else ''}what was written"
    if result.out is not None:
        line = f"Written: {result.out} ({(result.copied_bytes or 0) / (1 << 20):.1f} MiB of weights)"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    if result.findings:
        console.print(render_findings(result.findings))


def _read_source(text: str) -> tuple[str, Path]:
    name, is_given, path = text.partition("=")
    if not is_given or not name or not path:
        raise InvalidSetup.because(
            "source-unreadable", f"{text!r} names no checkpoint and directory.", where="--from", fix="Write NAME=DIR."
        )
    return name, Path(path)
