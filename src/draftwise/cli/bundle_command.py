"""`draftwise bundle`: packs a setup's weights and their dependencies in one folder, for machines without a hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._findings import render_findings
from draftwise.cli._options import options
from draftwise.cli._results import json_option, show
from draftwise.core import InvalidSetup
from draftwise.verbs.bundle import BundleRequest, BundleResult
from draftwise.verbs.bundle import bundle as run_bundle

_VERIFY = "verify"


class _BundleGroup(click.Group):
    """Two commands, of which `make` is meant where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `make` in front of a source."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["make", *args])


@click.group(cls=_BundleGroup)
def bundle() -> None:
    """Put a setup's weights into one folder, with everything that a machine without access to the hub needs."""


@bundle.command(short_help="Write a bundle; `make` can be left out.")
@click.argument("setup", type=click.Path(path_type=Path))
@options("bundle", of=BundleRequest, wheels=click.Path(path_type=Path, exists=True, dir_okay=False))
def make(sources: Sequence[str], as_json: bool, **given: Any) -> None:
    """Write the bundle of SETUP: a folder of `draftwise deploy`, or a setup.json.

    draftwise first checks the checkpoints: missing shards or tensors, a missing tokenizer, Git LFS pointers, links that
    point elsewhere. To resume an interrupted command, run it again. DIR appears only once it is complete.
    """
    request = BundleRequest(**given, sources=dict(map(_read_source, sources)))
    show(run_bundle.run(request), render, as_json=as_json)


@bundle.command(name=_VERIFY, short_help="Check that a bundle is complete and unchanged.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def verify(folder: Path, as_json: bool) -> None:
    """Verify every file of DIR by its checksum, and check its checkpoints as `inspect` does.

    The exit code is 1 if something is wrong, and 2 if DIR is not a bundle.
    """
    show(run_bundle.run(BundleRequest(folder, verify=True)), render, as_json=as_json)


def render(console: Console, result: BundleResult) -> None:
    """Print what was written or verified, and the findings."""
    line = f"{result.folder} {'does not match' if result.is_wrong else 'matches'} what was written"
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
