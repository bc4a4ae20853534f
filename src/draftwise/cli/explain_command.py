"""`draftwise explain`: explains a finding's code, or a key, method or flag of vLLM with its history and source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from draftwise.cli._options import options, read_rows
from draftwise.cli._results import show
from draftwise.core import InvalidSetup
from draftwise.verbs.explain import ExplainRequest, ExplainResult, Explanation, RuleExample, VllmRule, show_template
from draftwise.verbs.explain import explain as run_explain

_ROWS = Path(__file__).with_name("options")
_TRAINERS = sorted(Path(__file__).parents[1].glob("training/*.py"))


def find_options(name: str, group: click.Group) -> tuple[Explanation, ...]:
    """Return what an option does, once for each help text; methods of `train` are asked where no verb has it.

    Only verbs are imported whose file or rows name the option, or that share the engine's.
    """
    root, helps = click.Context(group), dict[str, list[str]]()
    for verb in sorted(group.list_commands(root), key="train".__eq__):
        module = verb.replace("-", "_")
        text = Path(__file__).with_name(f"{module}_command.py").read_text(encoding="utf-8")
        rows = (row for file in _ROWS.glob(f"{module}*.json") for row in read_rows(file.stem))
        names_it = name in text or "engine_options" in text or name in str([*rows])
        if verb == "train":  # whose options are fields of the trainers' settings, and need the engine
            names_it = not helps and any(_field(name) in file.read_text(encoding="utf-8") for file in _TRAINERS)
        if names_it:
            for words, each in _list_commands(verb, group.get_command(root, verb)):
                _collect(name, words, each, helps)
    return tuple(
        Explanation(kind="option", name=name, text=f"{text} For: {', '.join(words)}.") for text, words in helps.items()
    )


def _field(option: str) -> str:
    return option.lstrip("-").removeprefix("no-").replace("-", "_")


def _collect(name: str, words: str, command: click.Command, helps: dict[str, list[str]]) -> None:
    for param in command.params:
        if name in (*param.opts, *param.secondary_opts) and not getattr(param, "hidden", False):
            record = param.get_help_record(click.Context(command))
            helps.setdefault(record[1] if record else "", []).append(words)


def _list_commands(words: str, command: click.Command | None) -> Iterator[tuple[str, click.Command]]:
    """Yield a command with its words, and those inside it. Those of `train` need the engine."""
    if command is not None:
        yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            with suppress(InvalidSetup):
                yield from _list_commands(f"{words} {name}", command.get_command(context, name))


@click.command(context_settings={"ignore_unknown_options": True})  # NAME may be a flag
@click.argument("name", nargs=-1)
@options("explain", of=ExplainRequest)
def explain(name: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Show what NAME means, which vLLM releases have it, and the sources."""
    text = sys.stdin.read() if name == ("-",) else " ".join(name)
    group = click.get_current_context().find_root().command
    is_option = text.startswith("-") and len(text.split()) == 1
    own = find_options(text, group) if is_option and isinstance(group, click.Group) else ()
    try:
        result = run_explain.run(ExplainRequest(text, **given))
    except InvalidSetup:
        if not own:
            raise
        result = ExplainResult(explanations=(), oldest="", newest="")
    show(replace(result, explanations=(*own, *result.explanations)), render, as_json=as_json)


def render(console: Console, result: ExplainResult) -> None:
    """Print every explanation, or all names by kind."""
    if result.is_list:
        for kind, group in groupby(result.explanations, key=lambda each: each.kind):
            console.print(Text(kind, "bold"))
            _print(console, ", ".join(each.name for each in group))
        return
    for each in result.explanations:
        _show(console, each, result)


def _show(console: Console, explanation: Explanation, result: ExplainResult) -> None:
    console.print(Text.assemble((explanation.name, "bold"), (f"  {explanation.kind}", "dim")))
    if fact := explanation.rule or explanation.finding:
        _print(console, fact.title, "bold")
    if explanation.text:
        _print(console, explanation.text)
    if rule := explanation.rule:
        _show_rule(console, rule, result)
    if finding := explanation.finding:
        _print(console, finding.fix)
        threshold = f", beyond the threshold {finding.threshold}" if finding.threshold else ""
        if told := finding.diagnosis:
            parent = f"; until then it is called {told.parent}" if told.parent else ""
            _print(console, f"Told by: {told.told_by}")
            _print(console, f"needs: {', '.join(told.needs)}{parent}", "dim")
            _print(console, f"source: {told.source}", "dim")
        _print(console, f"{' or '.join(finding.severities)}{threshold}, from: {finding.room.lower()}", "dim")
    if explanation.example:
        _show_example(console, explanation.example)
    if explanation.link:
        _print(console, f"more: {explanation.link}", "dim")
    if explanation.see:
        _print(console, f"see also: {', '.join(explanation.see)}", "dim")
    if explanation.history:
        console.print(_history(explanation, result))
    if explanation.related:
        _print(console, "rules that mention it:", "dim")
        for rule in explanation.related:
            console.print(Padding(Text.assemble((rule.code, "bold"), f"  {rule.title}"), (0, 0, 0, 4), expand=False))
    console.print()


def _show_example(console: Console, example: RuleExample) -> None:
    for name, text in example.titles():
        _print(console, f"example, {name}:\n{text.rstrip()}")
    if example.line:
        _print(console, f"example: {example.line}")
    if example.tested:
        _print(console, f"draftwise says:\n{example.says}")
        _print(console, f"checked by {example.test}", "dim")


def _show_rule(console: Console, rule: VllmRule, result: ExplainResult) -> None:
    spans = ", ".join(_range(first, last, result) for first, last in rule.spans)
    raised = f" ({rule.exception})" if rule.exception else ""
    _print(console, f"vLLM {spans}: {rule.effect}, {rule.stage}{raised}")
    for title, text in (("says", rule.message), ("fix", rule.fix), ("runs instead", rule.becomes)):
        if text:
            _print(console, f"{title}: {show_template(text)}")
    _print(console, f"source: {rule.source}", "dim")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Padding(Text(text, style), (0, 0, 0, 2), expand=False))


def _history(explanation: Explanation, result: ExplainResult) -> Padding:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("vLLM", "", "source"):
        table.add_column(column, header_style="dim", overflow="fold")
    for span in explanation.history:
        table.add_row(_range(span.since, span.until, result), _value(span.value), Text(span.source, "dim"))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _range(first: object, last: object, known: ExplainResult) -> str:
    """Return a range of releases as text. What the oldest covered release has may be older."""
    since, until = str(first), known.newest if last is None else str(last)
    if since == until:
        return since
    left = f"{since} (or before)" if since == known.oldest else since
    return f"{left} to {until}{' (newest)' if until == known.newest else ''}"


def _value(value: Any) -> str:
    """Return a catalogue row as text, without vLLM's internal groups and types."""
    if not isinstance(value, dict):
        return "" if value is True else str(value)
    hidden = {"group", "field", *(("type",) if value.get("choices") else ())}
    shown = {key: inner for key, inner in value.items() if key not in hidden and inner not in (None, [], "")}
    return ", ".join(f"{key} {_short(inner)}" for key, inner in shown.items())


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
