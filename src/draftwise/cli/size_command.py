"""`draftwise size`: computes the memory that a setup takes on each GPU, without loading anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import narrow, show_prose, show_table
from draftwise.cli._options import FILE, option
from draftwise.cli._results import show
from draftwise.cli._setups import config_options, nearest_option
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


@click.command(short_help="Compute the memory of target, drafter and KV cache on a GPU.")
@click.argument("target")
@option("--gpu NAME", "GPU, e.g. H200, L40S or A100-80GB, or its memory, e.g. 48GiB.", required=True)
@option("--drafter MODEL", "Draft model or head: a directory or a known id.")
@option("--method NAME", "Drafting method: eagle3, mtp, ngram ...  [default: as vLLM infers it]")
@option("--num-speculative-tokens K", "Draft tokens per step.", type=click.IntRange(1))
@option("--speculative-config JSON|FILE", "-sc",
        "The speculative config, as for vLLM, or a file with it; replaces the three options above.")  # fmt: skip
@option("--tp N", "--tensor-parallel-size", "tensor_parallel_size", "GPUs for tensor parallelism.",
        type=click.IntRange(1, 1024), default=1, show_default=True)  # fmt: skip
@option("--pp N", "--pipeline-parallel-size", "pipeline_parallel_size", "Pipeline stages.",
        type=click.IntRange(1, 1024), default=1, show_default=True)  # fmt: skip
@click.option(
    "--quantization",
    metavar="NAME",
    help="Quantization of the target's weights: a vLLM method that quantizes while loading (fp8 ...), or that of a "
    "quantized copy: int8, int4, awq, gptq, mxfp4, nvfp4 ...  [default: as stored]",
)
@option("--kv-cache-dtype NAME", "KV cache type: auto or fp8.")
@option("--block-size N", "Tokens per KV block.", type=click.IntRange(1))
@option("--max-model-len N", "Longest context  [default: the model's]", type=click.IntRange(1))
@option("--max-num-seqs N", "Concurrent sequences  [default: by GPU]", type=click.IntRange(1))
@option("--max-num-batched-tokens N", "Tokens per step  [default: by GPU]", type=click.IntRange(1))
@option("--gpu-memory-utilization SHARE", "Share of GPU memory for vLLM  [default: 0.92; 0.9 before vLLM 0.20]",
        type=float)  # fmt: skip
@option("--enforce-eager", "Use no CUDA graphs.", is_flag=True)
@option("--enable-prefix-caching/--no-enable-prefix-caching",
        "Whether the server keeps prefixes  [default: as the release does for TARGET]", default=None)  # fmt: skip
@option("--context N", "contexts", "Context length at which to count sequences; repeatable.",
        type=click.IntRange(1), multiple=True)  # fmt: skip
@option("--vllm VERSION", "vLLM release.", default="newest", show_default=True)
@nearest_option
@config_options
@option("--compiled/--cold", "Whether vLLM's compile cache already exists.", default=False)
@option("--json", "as_json", "Print JSON, in bytes.", is_flag=True)
@option("--plot FILE.svg", "Draw memory and concurrency, with and without the drafter.", type=FILE)
def size(as_json: bool, plot: Path | None, **given: Any) -> None:
    """Show the memory that TARGET takes on each GPU.

    TARGET is a checkpoint directory, a well-known model id, or a config.json. size loads nothing: it counts weights
    from safetensors headers if the directory has them, otherwise from the model's shape. The rest becomes KV cache,
    whose capacity you see with and without the drafter. The exit code is 1 if the setup does not fit, or if vLLM would
    reject it.

    \b
    Examples:
      draftwise size meta-llama/Llama-3.1-8B-Instruct --gpu H200 \\
          -sc '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}'
      draftwise size ./model --gpu 48GiB --tp 2
    """
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
    return Text(("█" * (eighths // 8) + partial)[:_BAR] or "▏", style=_COLORS[item.key])


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
