"""The answer of `draftwise pick` in a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import show_table
from draftwise.cli._findings import report_to_dict
from draftwise.core import Finding, Severity
from draftwise.knowledge.advice import all_advice, give_advice
from draftwise.plan.pick import MethodRanking, RankedMethod
from draftwise.plan.pick.recommend import decide_command
from draftwise.setups.write import write_shell

__all__ = ["advice_to_dict", "show_advice"]

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_GIB = 2**30
_FEW = 2
"""Published results that are shown without --why."""


def show_advice(console: Console, advice: MethodRanking, *, why: bool) -> None:
    """Print the verdict, the ranked methods, the first config to paste, the refusals and the command to measure."""
    console.print(Text(_head(advice), style="dim"), soft_wrap=True)
    console.print(Text(advice.sentence, style="bold"), soft_wrap=True)
    for lever in advice.levers:
        _show_finding(console, lever.finding)
    if advice.ranked:
        console.print()
        show_table(console, _table(advice))
        console.print(Text(_basis(advice), style="dim"), soft_wrap=True)
        if not advice.is_against:
            _show_first(console, advice)
    _show_refusals(console, advice)
    if why:
        _show_rules(console, advice)


def _head(advice: MethodRanking) -> str:
    """Return one line with the requirements."""
    requirements, traffic = advice.requirements, advice.requirements.traffic
    return "  ".join(
        (
            f"vLLM {advice.version}",
            _short(requirements.target),
            f"{requirements.gpus} x {requirements.gpu.name}",
            traffic.kind or f"overlap {traffic.overlap}",
            f"temperature {traffic.temperature:g}",
            f"concurrency {traffic.concurrency}",
        )
    )


def _short(target: str) -> str:
    return "config.json" if target.lstrip().startswith("{") else target


def _show_finding(console: Console, finding: Finding, indent: str = "") -> None:
    text = Text.assemble(indent, (f"{finding.code}  ", _STYLES[finding.severity]), str(finding))
    console.print(text, soft_wrap=True)


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
    """Return a number with its range; alone where one measurement is all that is known."""
    low, high = (f"{end:.1f}" for end in ends)
    return f"{value:.2f}" if low == high else f"{value:.2f} ({low}-{high})"


def _basis(advice: MethodRanking) -> str:
    """Return what the speed-ups in the table rest on."""
    if advice.ranked[0].estimate is None or advice.ranked[0].estimate.gain is None:
        return "No speed-up is estimated: the target's shape or the GPU's speed is not known. The guides' order stands."
    return (
        "Speed-up of decoding = tokens per step / break-even. Tokens per step are published or prior, not yours; "
        "break-even is computed from the GPU's data sheet and launch costs measured on an H200."
    )


def _show_first(console: Console, advice: MethodRanking) -> None:
    first = advice.ranked[0]
    console.print()
    console.print(Text("To paste:", style="dim"))
    _show_lines(console, write_shell(first.setup, line_per_flag=True), "green")
    for finding in (*first.reasons, *first.caveats):
        _show_finding(console, finding, "  ")
    if first.scheduled is not None:
        text = f"For varying load: {json.dumps(dict(first.scheduled))}"
        _show_finding(console, give_advice("schedule", message=text), "  ")
    for each in first.published_results[:_FEW]:
        _show_lines(console, f"published: {each.result}. {each.conditions} ({each.source})", "dim")
    for other in first.alternatives:
        _show_lines(console, f"also published: {other.model}  {other.note}", "dim")
    console.print(Text("To measure it on your own prompts:", style="dim"))
    _show_lines(console, decide_command(first.setup, advice.requirements.traffic))


def _show_refusals(console: Console, advice: MethodRanking) -> None:
    console.print()
    console.print(Text("Not recommended:", style="dim"))
    methods: dict[str, list[str]] = {}
    for refusal in advice.refused:
        methods.setdefault(str(refusal.reasons[0]), []).append(refusal.method)
    for reason, names in methods.items():
        console.print(Text.assemble(f"  {', '.join(names)}  ", (reason, "dim")), soft_wrap=True)


def _show_rules(console: Console, advice: MethodRanking) -> None:
    console.print()
    for candidate in advice.ranked[1:]:
        console.print(Text(f"Why {candidate.method}:", style="dim"))
        for finding in (*candidate.reasons, *candidate.caveats):
            _show_finding(console, finding, "  ")
    console.print(Text("Rules behind this answer:", style="dim"))
    rules = all_advice()
    for code, source in dict.fromkeys((each.code, each.source) for each in _findings(advice)):
        if code in rules:
            text = Text.assemble(
                "  ", (code, "bold"), f"  {rules[code].title}. {rules[code].explains} ", (source, "dim")
            )
            console.print(text, soft_wrap=True)
    console.print(Text("Published results:", style="dim"))
    for candidate in advice.ranked:
        for each in candidate.published_results:
            text = Text.assemble("  ", (f"{candidate.method}  ", "bold"), f"{each.result}; {each.conditions} ")
            console.print(text.append(each.source, "dim"), soft_wrap=True)


def _findings(advice: MethodRanking) -> Iterator[Finding]:
    yield from (lever.finding for lever in advice.levers)
    for candidate in advice.ranked:
        yield from (*candidate.reasons, *candidate.caveats)
    for refusal in advice.refused:
        yield from refusal.reasons
    yield give_advice("guide-order")
    yield give_advice("starting-point")


def advice_to_dict(advice: MethodRanking) -> dict[str, Any]:
    """Return the answer as JSON."""
    return {
        "vllm": advice.version,
        "target": advice.requirements.target,
        "sentence": advice.sentence,
        "against": [{"weight": lever.weight, **lever.finding.to_dict()} for lever in advice.levers],
        "ranked": [_candidate_to_dict(advice, each) for each in advice.ranked],
        "refused": [
            {"method": each.method, "reasons": [reason.to_dict() for reason in each.reasons]} for each in advice.refused
        ],
    }


def _candidate_to_dict(advice: MethodRanking, candidate: RankedMethod) -> dict[str, Any]:
    spec, expected = candidate.setup.spec, candidate.estimate
    budget = None if candidate.sizing is None else candidate.sizing.budget
    return {
        "method": candidate.method,
        "pays": candidate.pays,
        "speculative_config": None if spec is None else spec.to_dict(),
        "command": write_shell(candidate.setup),
        "measure": decide_command(candidate.setup, advice.requirements.traffic),
        "scheduled": None if candidate.scheduled is None else dict(candidate.scheduled),
        "estimate": None
        if expected is None
        else {
            "k": expected.k,
            "sequences": expected.sequences,
            "speedup": expected.gain,
            "speedup_range": None if expected.gain_range is None else list(expected.gain_range),
            "acceptance_prior": [expected.expectation.low, expected.expectation.high],
            "acceptance_expected": expected.expectation.expected,
            "acceptance_needed": expected.needed_acceptance,
            "temperature_factor": expected.expectation.factor,
            "length_prior": list(expected.length_range),
            "length_expected": expected.expected_length,
            "length_break_even": expected.break_even,
            "tpot_ms": None if expected.tpot_s is None else 1e3 * expected.tpot_s,
            "plain_tpot_ms": None if expected.baseline_s is None else 1e3 * expected.baseline_s,
            "source": expected.expectation.source,
        },
        "memory": None
        if budget is None
        else {
            "drafter_gib": round(budget.drafter / _GIB, 3),
            "weights_gib": round(budget.weights / _GIB, 3),
            "kv_gib": round(budget.kv_bytes / _GIB, 3),
            "kv_tokens": budget.kv_tokens,
        },
        "check": report_to_dict(candidate.report),
        "reasons": [each.to_dict() for each in candidate.reasons],
        "caveats": [each.to_dict() for each in candidate.caveats],
        "alternatives": [each.model for each in candidate.alternatives],
        "published": [
            {"result": each.result, "conditions": each.conditions, "source": each.source}
            for each in candidate.published_results
        ],
    }
