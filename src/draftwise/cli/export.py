"""`draftwise export`: a trained drafter in the format that a server needs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from draftwise.core import InvalidSetup

__all__ = ["export"]


@click.command(short_help="Write a drafter for vLLM or in the speculators format.")
@click.argument("drafter", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A new directory.")
@click.option(
    "--target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Checkpoint of its target."
)
@click.option(
    "--format", "layout", type=click.Choice(["vllm", "speculators"]), default="vllm", show_default=True,
    help="vLLM's plain layout, or that of the speculators library.",
)  # fmt: skip
@click.option("--num-speculative-tokens", "k", type=click.IntRange(1), metavar="K",
              help="Draft tokens per step  [default: as trained]")  # fmt: skip
def export(drafter: Path, out: Path, target: Path, layout: str, k: int | None) -> None:
    """Write DRAFTER, the directory of a drafter, in a format that a server loads.

    MTP modules and their target become one checkpoint, which is where vLLM looks for them. EAGLE-3, P-EAGLE and
    DFlash drafters are converted between vLLM's plain layout and the speculators format. The result is loaded with
    the engine's own loader, which rejects incomplete drafters, before it is moved into place.
    """
    try:
        from draftwise.training.drafter_export import export_drafter
    except ImportError as error:
        raise InvalidSetup.because(
            "engine-not-installed",
            f"Exporting needs {error.name}, which is not installed.",
            fix="Run: pip install 'draftwise[engine]'.",
        ) from None
    made = export_drafter(drafter, out, target=target, layout=layout, k=k)
    click.echo(f"wrote {made.out}")
    click.echo(f"vllm serve {made.model} --speculative-config '{json.dumps(made.speculative_config)}'")
