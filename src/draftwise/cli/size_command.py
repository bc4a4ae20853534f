"""`draftwise size`: computes the memory that a setup takes on each GPU, without loading anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import narrow, show_prose, show_table
from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.cli._setups import SetupCommand
from draftwise.core import Finding, Severity, StorageError, cause_of
from draftwise.verbs.size import Item, SizeRequest, SizeResult, items
from draftwise.verbs.size import size as run_size

_GIB = 1 << 30
_BAR = 28
_COLORS = {
    "target": "blue", "drafter": "yellow", "activations": "cyan", "overhead": "bright_black", "kv": "green",
    "outside": "red", "reserve": "dim",
}  # fmt: skip
_SEVERITY = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_WIDTH = 110
"""Columns if the output is not a terminal."""


@click.command(cls=SetupCommand)
@click.argument("target")
@options("size", of=SizeRequest)
def size(as_json: bool, plot: Path | None, **given: Any) -> None:
    """Show the memory that TARGET takes on each GPU."""
    result = run_size.run(SizeRequest(**given))
    if plot is not None:
        drawn = result.to_svg()
        try:
            plot.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{plot} cannot be written ({cause_of(error)}). Choose another path.") from None
        click.echo(f"wrote {plot}", err=True)
    show(result, render, as_json=as_json, indent=2, width=_WIDTH)


def render(console: Console, result: SizeResult) -> None:
    """Print the memory item by item, and how many sequences fit."""
    console.print(_title(result))
    console.print()
    show_table(console, _memory_table(result))
    console.print()
    table = _context_table(result)
    show_table(console, *narrow(table, "per token", *(str(each.header) for each in table.columns[-3:1:-2])))
    if result.findings:
        console.print()
    for finding in result.findings:
        show_prose(console, _line(finding))


def _title(result: SizeResult) -> Text:
    sizing = result.sizing
    request, budget = sizing.request, sizing.budget
    speculation = ""
    if sizing.plain is not budget:
        speculation = f" + {request.drafter.method} k={request.num_speculative_tokens}"
    gpus = request.tensor_parallel_size * request.pipeline_parallel_size
    each = f"each of {gpus} {request.gpu.name}" if gpus > 1 else f"one {request.gpu.name}"
    return Text.assemble(
        (f"{request.name}{speculation}", "bold"),
        f" on {each} ({budget.device / _GIB:.1f} GiB), vLLM {request.release}, runner {request.runner}",
    )


def _memory_table(result: SizeResult) -> Table:
    sizing = result.sizing
    both = sizing.plain is not sizing.budget
    plain = {item.key: item for item in items(sizing.plain)}
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("memory")
    table.add_column("GiB", justify="right")
    table.add_column("", width=_BAR)
    if both:
        table.add_column("without\ndrafter", justify="right")
    for item in items(sizing.budget):
        before = plain.get(item.key)
        row = [Text(item.label), Text(f"{item.num_bytes / _GIB:.2f}"), _bar(item, sizing.budget.device)]
        table.add_row(*row, *([Text(f"{before.num_bytes / _GIB:.2f}" if before else "-")] if both else []))
    return table


def _bar(item: Item, total: int) -> Text:
    """Return a bar whose full width is the GPU's memory."""
    eighths = round(8 * _BAR * item.num_bytes / total)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text(("█" * min(eighths // 8, _BAR) + partial)[:_BAR] or "▏", style=_COLORS[item.key])


def _context_table(result: SizeResult) -> Table:
    budget, plain, lengths = result.sizing.budget, result.sizing.plain, result.contexts
    both = plain is not budget
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("concurrent sequences")
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    table.add_column("KV tokens", justify="right")
    table.add_column("per token", justify="right")
    for name, each in (("with drafter" if both else "", budget), *((("without", plain),) if both else ())):
        cells = [_count(each.sequences(length), each.max_num_seqs) for length in lengths]
        table.add_row(name, *cells, f"{each.kv_tokens:,}", f"{each.kv.bytes_per_token / 1024:.1f} KiB")
    return table


def _count(sequences: int, limit: int) -> Text:
    """Return a number of sequences. Dim where `max_num_seqs` is the tighter limit."""
    return Text(f"{sequences:,}", style="red" if sequences == 0 else "dim" if sequences > limit else "")


def _line(finding: Finding) -> Text:
    return Text.assemble((f"{finding.severity}: ", _SEVERITY[finding.severity]), str(finding))
