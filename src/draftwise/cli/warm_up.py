"""`draftwise warm-up`: a folder with the kernels that a server will need, compiled ahead."""

from __future__ import annotations

import logging
import time

import click

from draftwise.cli._engine import PhaseLines, engine_options, make_config
from draftwise.core import SpecConfig

__all__ = ["warm_up"]


@click.command("warm-up", short_help="Compile a server's kernels ahead, into a folder that can be shipped.")
@click.argument("model")
@click.option("--out", required=True, metavar="DIR", help="Folder of the kernels: new, or filled on such a machine.")
@click.option("--speculative-config", "-sc", metavar="JSON", help="As the server will have it.")
@engine_options
def warm_up(model: str, out: str, speculative_config: str | None, **settings: object) -> None:
    """Compile the kernels that `draftwise serve MODEL` needs with the same flags, without serving.

    DIR then goes to other machines with the same processor and versions, as a folder or in an image, where
    `draftwise serve MODEL --kernel-cache DIR` starts without compiling; another machine refuses it. Several models
    and configurations may share it. --load-format dummy needs no weights, only config.json.
    """
    spec = SpecConfig.parse(speculative_config) if speculative_config is not None else None
    config = make_config(model, spec, settings)
    try:
        from draftwise.serve.worker import fill_kernel_cache
    except ModuleNotFoundError as error:
        from draftwise.serve.engine_process import make_missing_error

        raise make_missing_error(error) from None
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    began = time.monotonic()
    with PhaseLines() as phases:
        filled = fill_kernel_cache(config, spec, out, on_phase=phases.show)
    took = time.monotonic() - began
    click.echo(
        f"{out}: {filled.num_kernels} kernels, {filled.num_bytes / 2**20:.1f} MiB, in {took:.1f} s. "
        f"Serve with: --kernel-cache {out}"
    )
