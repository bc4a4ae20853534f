"""Explains the options of the verbs by their help, for `draftwise explain --OPTION`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from draftwise.core import InvalidSetup
from draftwise.verbs.explain import Explanation


def find_options(name: str, group: click.Group) -> tuple[Explanation, ...]:
    """Return what an option does, once for each help text; methods of `train` are asked where no verb has it.

    Only verbs are imported whose file names the option, or a file that does.
    """
    root = click.Context(group)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("*.py")}
    homes = ["_engine", *(stem for stem, text in texts.items() if name in text)]  # _engine makes some of fields
    helps: dict[str, list[str]] = {}
    for verb in sorted(group.list_commands(root), key="train".__eq__):
        own = f"{verb.replace('-', '_')}_command"
        if not helps if verb == "train" else any(home in f"{own} {texts[own]}" for home in homes):
            for words, each in _list_commands(verb, group.get_command(root, verb)):
                _collect(name, words, each, helps)
    return tuple(
        Explanation(kind="option", name=name, text=f"{text} For: {', '.join(words)}.") for text, words in helps.items()
    )


def _collect(name: str, words: str, command: click.Command, helps: dict[str, list[str]]) -> None:
    for param in command.params:
        if name in (*param.opts, *param.secondary_opts) and not getattr(param, "hidden", False):
            record = param.get_help_record(click.Context(command))
            helps.setdefault(record[1] if record else "", []).append(words)


def _list_commands(words: str, command: click.Command | None) -> Iterator[tuple[str, click.Command]]:
    """Yield a command with its words, and those inside it; those of `train` need the engine."""
    if command is not None:
        yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            with suppress(InvalidSetup):
                yield from _list_commands(f"{words} {name}", command.get_command(context, name))
