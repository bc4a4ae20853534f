"""`draftwise pick`: recommends the method to start with, for a target, hardware, release and traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import narrow, show_prose, show_table
from draftwise.cli._options import options
from draftwise.cli._results import show, show_names
from draftwise.core import Finding, Severity
from draftwise.verbs.offered_names import list_gpus, list_traffic_kinds
from draftwise.verbs.pick import MethodRanking, PickRequest, PickResult, RankedMethod, list_models
from draftwise.verbs.pick import pick as run_pick

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_FEW = 2
"""Published results that are shown without --why."""


class _Traffic(click.Choice[str]):
    """A kind of traffic, in American or British spelling."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value.replace("isation", "ization"), param, ctx)


def _list_names(ctx: click.Context, _: click.Parameter, asked: bool, *, find: Callable[[], Sequence[str]]) -> None:
    if asked and not ctx.resilient_parsing:
        show_names(ctx, find())
        ctx.exit()


@click.command()
@click.argument("target")
@click.argument("engine_flags", nargs=-1, metavar="[-- ENGINE FLAGS]")
@options(
    "pick",
    of=PickRequest,
    workload=_Traffic(list_traffic_kinds()),
    temperature=click.FloatRange(0),
    list_models={"callback": partial(_list_names, find=list_models)},
    list_gpus={"callback": partial(_list_names, find=list_gpus)},
)
def pick(why: bool, as_json: bool, **given: Any) -> None:
    """Recommend drafting methods for TARGET: ranked, checked against the release, sized, and with reasons."""
    result = run_pick.run(PickRequest(**given))
    if not as_json:
        for remark in result.remarks:
            click.echo(f"{remark.severity}: {remark}", err=True)
    show(result, partial(render, why=why), as_json=as_json)


def render(console: Console, result: PickResult, *, why: bool = False) -> None:
    """Print the ranked methods, the refusals, the recommendation, its config to paste and the command to measure."""
    advice = result.advice
    show_prose(console, _head(advice), "dim")
    if advice.ranked:
        show_table(console, *narrow(_table(advice), "break-\neven", "tokens per step\n(range)", "sequences\nthat fit"))
        show_prose(console, _basis(advice), "dim")
    _show_refusals(console, advice)
    if why:
        _show_rules(console, result)
    console.print()
    show_prose(console, advice.sentence, "bold")
    for lever in advice.levers:
        _show_finding(console, lever.finding)
    if advice.ranked and not advice.is_against:
        _show_first(console, result)


def _head(advice: MethodRanking) -> str:
    requirements, traffic = advice.requirements, advice.requirements.traffic
    return "  ".join(
        (
            f"vLLM {advice.version}",
            ("config.json" if requirements.target.lstrip().startswith("{") else requirements.target),
            f"{requirements.gpus} x {requirements.gpu.name}",
            traffic.kind or f"overlap {traffic.overlap}",
            f"temperature {traffic.temperature:g}",
            f"concurrency {traffic.concurrency}",
        )
    )


def _show_finding(console: Console, finding: Finding, indent: str = "") -> None:
    text = Text.assemble(indent, (f"{finding.code}  ", _STYLES[finding.severity]), str(finding))
    show_prose(console, text)


def _show_lines(console: Console, lines: str, style: str = "") -> None:
    """Print text to copy: indented, and never wrapped."""
    for line in lines.splitlines():
        console.print(Text(f"  {line}", style=style), soft_wrap=True)


def _table(advice: MethodRanking) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "method", "drafter"):
        table.add_column(name, overflow="fold", no_wrap=name != "drafter")
    for name in ("k", "speed-up\n(range)", "tokens per step\n(range)", "break-\neven", "sequences\nthat fit"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, each in enumerate(advice.ranked, 1):
        style = "" if each.pays else "dim"
        table.add_row(str(place), each.method, *_row(advice, each), style=style)
    return table


def _row(advice: MethodRanking, candidate: RankedMethod) -> tuple[str, ...]:
    spec, expected = candidate.setup.spec, candidate.estimate
    drafter = (spec.model if spec is not None else None) or "-"
    k = str(spec.num_speculative_tokens) if spec is not None and spec.num_speculative_tokens else "-"
    gain = likely = needed = "-"
    if expected is not None:
        likely = _with_range(expected.expected_length, expected.length_range)
        needed = "-" if expected.break_even is None else f"{expected.break_even:.2f}"
    if expected is not None and expected.gain is not None and expected.gain_range is not None:
        gain = _with_range(expected.gain, expected.gain_range) + ("" if candidate.pays else " loses")
    traffic, sizing = advice.requirements.traffic, candidate.sizing
    room = "-" if sizing is None else str(sizing.budget.sequences(traffic.prompt_tokens + traffic.output_tokens))
    return drafter, k, gain, likely, needed, room


def _with_range(value: float, ends: tuple[float, float]) -> str:
    """Return a number with its range. Alone where one measurement is all that is known."""
    places = 1 if round(ends[0], 1) <= value <= round(ends[1], 1) else 2
    low, high = (f"{end:.{places}f}" for end in ends)
    return f"{value:.2f}" if low == high else f"{value:.2f} ({low}-{high})"


def _basis(advice: MethodRanking) -> str:
    if advice.ranked[0].estimate is None or advice.ranked[0].estimate.gain is None:
        return (
            "There is no speed-up estimate, because the target's shape or the GPU's speed is unknown. The guides' "
            "order stands."
        )
    return (
        "Speed-up of decoding = tokens per step / break-even, unless measurements of the pair replace or cap it. "
        "Tokens per step are published or assumed, not yours; break-even is computed from the GPU's data sheet and "
        "launch costs measured on an H200."
    )


def _show_first(console: Console, result: PickResult) -> None:
    first = result.advice.ranked[0]
    console.print(Text("To paste:", style="dim"))
    _show_lines(console, result.to_paste, "green")
    for finding in (*first.reasons, *first.caveats):
        _show_finding(console, finding, "  ")
    if result.schedule is not None:
        _show_finding(console, result.schedule, "  ")
    for each in first.published_results[:_FEW]:
        _show_lines(console, f"published: {each.result}. {each.conditions} ({each.source})", "dim")
    for other in first.alternatives:
        _show_lines(console, f"also published: {other.model}  {other.note}", "dim")
    console.print(Text("To measure it on your own prompts:", style="dim"))
    _show_lines(console, result.ranked[0].measure)


def _show_refusals(console: Console, advice: MethodRanking) -> None:
    if advice.refused:
        console.print()
        console.print(Text("Not recommended:", style="dim"))
    methods: dict[str, list[str]] = {}
    for refusal in advice.refused:
        methods.setdefault(str(refusal.reasons[0]), []).append(refusal.method)
    for reason, names in methods.items():
        show_prose(console, Text.assemble(f"  {', '.join(names)}  ", (reason, "dim")))


def _show_rules(console: Console, result: PickResult) -> None:
    advice = result.advice
    for candidate in advice.ranked[1:]:
        console.print(Text(f"Why {candidate.method}:", style="dim"))
        for finding in (*candidate.reasons, *candidate.caveats):
            _show_finding(console, finding, "  ")
    console.print(Text("Rules behind this answer:", style="dim"))
    for rule in result.rules:
        text = Text.assemble("  ", (rule.code, "bold"), f"  {rule.title}. {rule.explains} ", (rule.source, "dim"))
        show_prose(console, text)
    console.print(Text("Published results:", style="dim"))
    for candidate in advice.ranked:
        for each in candidate.published_results:
            text = Text.assemble("  ", (f"{candidate.method}  ", "bold"), f"{each.result}; {each.conditions} ")
            show_prose(console, text.append(each.source, "dim"))
