"""`draftwise bundle`: a setup's weights and what they need in one folder, for machines without a way to the hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from draftwise.cli._console import open_console
from draftwise.cli._findings import render_findings
from draftwise.core import Finding, InvalidSetup, Severity
from draftwise.deploying.deployment_folder import SETUP
from draftwise.deploying.verify.manifest_files import read_setup

__all__ = ["bundle"]

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
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def make(
    setup: Path,
    out: Path,
    sources: Sequence[str],
    image: str,
    modelcar: str,
    claim: str,
    wheels: Sequence[Path],
    mirror: str,
    as_json: bool,
) -> None:
    """Write the bundle of SETUP: a folder of `draftwise deploy`, or a setup.json.

    Checkpoints are looked at first: missing shards or tensors, a missing tokenizer, pointers that Git left, links that
    lead elsewhere. An interrupted command goes on where it was when it is given again; DIR appears when it is whole.
    """
    from draftwise.deploying.bundle import BundleOptions, pack

    wanted = BundleOptions(image=image, modelcar=modelcar, claim=claim, wheels=wheels, mirror=mirror)
    copied = 0

    def tell(count: int) -> None:
        nonlocal copied
        copied += count

    found = read_setup(setup / SETUP if setup.is_dir() else setup)
    findings = pack(found, dict(map(_read_source, sources)), out, wanted, told=tell)
    if as_json:
        row = {"out": str(out), "copied_bytes": copied, "findings": [each.to_dict() for each in findings]}
        click.echo(json.dumps(row, indent=1))
        return
    click.echo(f"Written: {out} ({copied / (1 << 20):.1f} MiB of weights)")
    _show(findings)


@bundle.command(name=_VERIFY, short_help="Prove that a bundle is what was written, and whole.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def verify(folder: Path, as_json: bool) -> None:
    """Prove every file of DIR by its sum, and look at its checkpoints as `inspect` does.

    The exit code is 1 if something is wrong, and 2 if DIR is no bundle.
    """
    from draftwise.deploying.bundle import verify_bundle

    findings = verify_bundle(folder)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "findings": [each.to_dict() for each in findings]}, indent=1))
    else:
        wrong = any(each.severity is Severity.ERROR for each in findings)
        click.echo(f"{folder} is {'not ' if wrong else ''}what was written")
        _show(findings)
    if any(each.severity is Severity.ERROR for each in findings):
        sys.exit(1)


def _read_source(text: str) -> tuple[str, Path]:
    name, is_given, path = text.partition("=")
    if not is_given or not name or not path:
        raise InvalidSetup.because(
            "source-unreadable", f"{text!r} names no checkpoint and directory.", where="--from", fix="Write NAME=DIR."
        )
    return name, Path(path)


def _show(findings: Sequence[Finding]) -> None:
    if findings:
        open_console(stderr=False).print(render_findings(findings))
