"""`draftwise size`: the memory that a setup takes on each GPU, without loading anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.checkpoints.config_json import find_model_config
from draftwise.cli._console import open_console, show_table
from draftwise.cli._setups import nearest_option, open_release
from draftwise.core import Finding, Setup, Severity, SpecConfig
from draftwise.knowledge.quantization import needs_checkpoint
from draftwise.knowledge.vllm import Release, find_remarks
from draftwise.plan.size import Sizing
from draftwise.plan.size import size as measure_setup
from draftwise.plan.size.view import Item, contexts_of, items, to_dict

__all__ = ["size"]

_GIB = 1 << 30
_BAR = 28
_COLORS = {
    "target": "blue", "drafter": "yellow", "activations": "cyan", "overhead": "bright_black", "kv": "green",
    "outside": "red", "reserve": "dim",
}  # fmt: skip
_SEVERITY = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_WIDTH = 110
"""Columns if the output is not a terminal."""


@click.command(short_help="Memory of target, drafter and KV cache on a GPU.")
@click.argument("target")
@click.option("--gpu", required=True, metavar="NAME", help="Such as H200, L40S or A100-80GB; or its memory, as 48GiB.")
@click.option("--drafter", metavar="MODEL", help="Draft model or head: directory or known id.")
@click.option("--method", metavar="NAME", help="Drafting method (eagle3, mtp, ngram ...)  [default: as vLLM infers it]")
@click.option("--num-speculative-tokens", "k", type=click.IntRange(1), metavar="K", help="Draft tokens per step.")
@click.option("--speculative-config", metavar="JSON", help="vLLM's own JSON, instead of the three options above.")
@click.option("--tp", "--tensor-parallel-size", "tp", type=click.IntRange(1), default=1, show_default=True)
@click.option("--pp", "--pipeline-parallel-size", "pp", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--quantization",
    metavar="NAME",
    help="Of the target's weights: a method of vLLM that quantizes while it loads (fp8 ...), or what a quantized copy "
    "of the target has: int8, int4, awq, gptq, mxfp4, nvfp4 ...  [default: as stored]",
)
@click.option("--kv-cache-dtype", metavar="NAME", help="auto or fp8.")
@click.option("--block-size", type=click.IntRange(1), metavar="N", help="Tokens of a KV block.")
@click.option("--max-model-len", type=click.IntRange(1), metavar="N", help="[default: the model's longest]")
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N", help="[default: by GPU]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="N", help="[default: by GPU]")
@click.option("--gpu-memory-utilization", type=float, metavar="SHARE", help="[default: 0.92; 0.9 before vLLM 0.20]")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--context", "contexts", type=click.IntRange(1), multiple=True, metavar="N",
              help="Length at which to count sequences; can be repeated.")  # fmt: skip
@click.option("--vllm", "version", default="newest", show_default=True, metavar="VERSION")
@nearest_option
@click.option("--compiled/--cold", "warm", default=False, help="Whether vLLM's compile cache exists already.")
@click.option("--json", "as_json", is_flag=True, help="Everything in bytes, as JSON.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg",
              help="Draw memory and concurrency, with and without the drafter.")  # fmt: skip
def size(
    target: str, gpu: str, version: str, nearest: bool, contexts: tuple[int, ...], warm: bool, as_json: bool,
    plot: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Show the memory that TARGET takes on each GPU.

    TARGET is a checkpoint's directory, a well-known model id, or a config.json. Weights are counted from safetensors
    headers if the directory has them, else from the shape. The rest becomes KV cache, whose capacity is shown with and
    without the drafter. The exit code is 1 if the setup does not fit, or if vLLM would reject it.
    """
    spec, release = _read_spec(given), open_release(version, nearest=nearest)
    stored = _read_stored(target, release, given["quantization"])
    if stored is not None:
        given = {**given, "quantization": None}
    setup = Setup(target=target, engine="vllm", engine_version=str(release), spec=spec, args=_read_flags(given))
    sizing = measure_setup(setup, gpu=gpu, cold_start=not warm, stored=stored)
    sizing = replace(sizing, findings=(*find_remarks(release), *sizing.findings))
    lengths = contexts_of(sizing, contexts)
    if as_json:
        click.echo(json.dumps(to_dict(sizing, lengths) | {"asked": release.asked or str(release)}, indent=2))
    else:
        _show(open_console(stderr=False, width=_WIDTH), sizing, lengths)
    if plot is not None:
        from draftwise.reporting.memory_plot import draw

        plot.write_text(draw(sizing), encoding="utf-8")
        click.echo(f"wrote {plot}", err=True)
    if any(finding.severity is Severity.ERROR for finding in sizing.findings):
        click.get_current_context().exit(1)


def _read_spec(given: dict[str, Any]) -> SpecConfig | None:
    text, drafter, method, k = (given[key] for key in ("speculative_config", "drafter", "method", "k"))
    if text is not None:
        if drafter or method or k:
            raise click.UsageError(
                "Give either --speculative-config or --drafter, --method and --num-speculative-tokens."
            )
        return SpecConfig.parse(text)
    named = {"method": method, "model": drafter, "num_speculative_tokens": k}
    known = {key: value for key, value in named.items() if value is not None}
    return SpecConfig.keep({"num_speculative_tokens": 3, **known}) if known else None


def _read_stored(target: str, release: Release, name: str | None) -> str | None:
    """Return the precision of a quantized copy of the target; None where it is quantized already, or while it loads."""
    found = find_model_config(target)
    if name is None or found is None or found.config.get("quantization_config"):
        return None
    by_vllm = name in release.table("quantization_methods")
    return name if not by_vllm or needs_checkpoint(name) else None


def _read_flags(given: dict[str, Any]) -> dict[str, Any]:
    """Return the engine flags that differ from their defaults."""
    names = (
        "quantization", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization",
    )  # fmt: skip
    flags = {name: given[name] for name in names if given[name] is not None}
    sizes = {"tensor_parallel_size": given["tp"], "pipeline_parallel_size": given["pp"]}
    flags |= {name: value for name, value in sizes.items() if value > 1}
    return flags | ({"enforce_eager": True} if given["enforce_eager"] else {})


def _show(console: Console, sizing: Sizing, lengths: tuple[int, ...]) -> None:
    console.print(_title(sizing))
    console.print()
    show_table(console, _memory_table(sizing))
    console.print()
    show_table(console, _context_table(sizing, lengths))
    if sizing.findings:
        console.print()
    for finding in sizing.findings:
        console.print(_line(finding))


def _title(sizing: Sizing) -> Text:
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


def _memory_table(sizing: Sizing) -> Table:
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


def _context_table(sizing: Sizing, lengths: tuple[int, ...]) -> Table:
    budget, plain = sizing.budget, sizing.plain
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
    """Return a number of sequences; dim where `max_num_seqs` is the tighter limit."""
    return Text(f"{sequences:,}", style="red" if sequences == 0 else "dim" if sequences > limit else "")


def _line(finding: Finding) -> Text:
    return Text.assemble((f"{finding.severity}: ", _SEVERITY[finding.severity]), str(finding))
