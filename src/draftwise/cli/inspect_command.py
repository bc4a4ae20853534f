"""`draftwise inspect`: lists a checkpoint's contents, and says whether a drafter fits, without loading either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._findings import render_findings
from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.core import Finding, Severity
from draftwise.verbs.inspect import Inspection, InspectRequest, InspectResult, Pair
from draftwise.verbs.inspect import inspect as run_inspect


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@options("inspect", of=InspectRequest)
def inspect(as_json: bool, **given: Any) -> None:
    """Show what CHECKPOINT contains: a target, or a drafter with its method and format."""
    show(run_inspect.run(InspectRequest(**given)), render, as_json=as_json)


def render(console: Console, result: InspectResult) -> None:
    """Print the contents, side by side for two checkpoints."""
    console.print(_facts(result.sides))
    if result.pair is not None:
        _show_pair(console, result.pair)
    console.print(render_findings(result.findings))
    console.print(_verdict(result.findings, result.pair is not None))


def _facts(sides: Sequence[Inspection]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", style="dim", no_wrap=True)
    for side, role in zip(sides, ("drafter", "target") if len(sides) > 1 else ("checkpoint",), strict=True):
        table.add_column(f"{role}\n{side.directory}", overflow="fold")
    for name, describe in _FACTS.items():
        cells = [describe(side) for side in sides]
        if any(cells):
            table.add_row(name, *(Text(cell or "-") for cell in cells))
    return table


def _kind(side: Inspection) -> str:
    drafter = side.drafter
    if not drafter.is_head:
        return "language model" + (" for parallel drafting" if drafter.parallel else "")
    if drafter.traits.weights == "target":
        return "MTP modules"
    return f"{drafter.method} head" + (", parallel" if drafter.parallel and drafter.traits.parallel == "option" else "")


def _format(side: Inspection) -> str:
    drafter = side.drafter
    return f"speculators ({drafter.algorithm})" if drafter.layout == "speculators" else "plain"


def _attention(side: Inspection) -> str:
    of = side.dimensions
    parts = (("heads", of.num_attention_heads), ("KV heads", of.num_key_value_heads), ("of size", of.head_dim))
    return ", ".join(f"{name} {count}" for name, count in parts if count and of.num_attention_heads)


def _weights(side: Inspection) -> str:
    kinds = ", ".join(f"{dtype} {_bytes(size)}" for dtype, size in side.headers.bytes_by_dtype().items())
    return f"{_bytes(side.headers.num_bytes)} in {_counted(len(side.headers.files), 'file')} ({kinds})"


def _vocabulary(side: Inspection) -> str:
    size, draft = side.dimensions.vocab_size, side.draft_vocab_size
    return _number(size) + (f", of which it drafts {draft:,}" if draft and draft != size else "")


def _mtp(side: Inspection) -> str:
    if side.mtp is None:
        return ""
    stated = "none stated" if side.mtp.stated is None else f"{side.mtp.stated} stated"
    return f"{stated}, {len(side.mtp.present)} present, {_bytes(side.mtp.num_bytes)}"


def _tokenizer(side: Inspection) -> str:
    found = side.vocabulary
    return "" if found is None else f"{len(found.tokens):,} tokens ({found.source})"


def _base(side: Inspection) -> str:
    base = side.recorded_base
    return "" if base is None or not side.drafter.is_head else f"{base.name or 'unnamed'} ({base.source})"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


_FACTS: dict[str, Callable[[Inspection], str]] = {
    "kind": _kind,
    "format": _format,
    "architecture": lambda side: side.drafter.architecture,
    "parameters": lambda side: _count(side.num_parameters),
    "weights": _weights,
    "quantization": lambda side: str(side.quantization or ""),
    "hidden size": lambda side: _number(side.dimensions.hidden_size),
    "layers": lambda side: _number(side.dimensions.num_hidden_layers),
    "attention": _attention,
    "MLP": lambda side: _number(side.dimensions.intermediate_size),
    "vocabulary": _vocabulary,
    "positions": lambda side: _number(side.dimensions.max_position_embeddings),
    "RoPE theta": lambda side: f"{theta:,.0f}" if (theta := side.dimensions.rope_theta) else "",
    "reads layers": lambda side: ", ".join(map(str, layers.ids)) if (layers := side.drafter.aux_layers) else "",
    "mask token": lambda side: _number(side.drafter.mask_token_id),
    "draft heads": lambda side: _number(side.num_heads),
    "MTP modules": _mtp,
    "tokenizer": _tokenizer,
    "trained for": _base,
}
"""Rows of the table; a row that is empty on both sides is left out. Layers are numbered as in EAGLE-3."""


def _show_pair(console: Console, pair: Pair) -> None:
    console.print()
    if pair.size_ratio is not None:
        console.print(f"size ratio  1:{pair.size_ratio:.1f}", highlight=False)
    console.print(Text.assemble("token ids   ", _tokens_verdict(pair)))


def _tokens_verdict(pair: Pair) -> tuple[str, str]:
    both = pair.tokenizers
    if both is None:
        if pair.has_recorded_tokenizer:
            return "the target's, as recorded when the drafter was trained", "green"
        return "not compared: one side has no tokenizer (a head needs none)", "dim"
    counts = f"{both.num_equal:,} equal"
    counts += f", {both.num_differing:,} different" if both.num_differing else ""
    extra = ((both.num_only_drafter, "drafter"), (both.num_only_target, "target"))
    counts += "".join(f", {count:,} in the {side} only" for count, side in extra if count)
    style = "green" if not both.num_differing else "red" if both.num_differing_text else "yellow"
    return f"{both.verdict} ({counts})", style


def _verdict(findings: Sequence[Finding], is_pair: bool) -> Text:
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if errors:
        return Text(f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}", style="bold red")
    if warnings:
        return Text(f"usable, with {_counted(warnings, 'warning')}", style="bold yellow")
    if not is_pair or any(finding.code == "tensors-unchecked" for finding in findings):
        return Text("no faults found", style="bold green")
    return Text("they fit", style="bold green")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _bytes(size: int) -> str:
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} B"


def _count(value: int) -> str:
    for unit, power in (("B", 9), ("M", 6)):
        if value >= 10**power:
            return f"{value / 10**power:.2f}{unit}"
    return f"{value:,}"
