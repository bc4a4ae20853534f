"""Writes the manual page draftwise(1), from the command line itself: `python -m docs.manual [FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from draftwise.cli import main as command_line
from draftwise.core.exit_codes import ExitCode
from draftwise.verbs import VERBS
from draftwise.version import __version__

ROOT = Path(__file__).parents[1]
NEED_ENGINE = {"train"}
"""Verbs whose options are listed only where the engine is installed."""


def roff(text: str) -> str:
    """Return text as roff reads it: nothing in it is a request or an escape."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("\N{NO-BREAK SPACE}", " ")
    return "\n".join(r"\&" + line if line[:1] in (".", "'") else line for line in escaped.splitlines())


def entry(term: str, text: str) -> str:
    """Return a paragraph with a term in front."""
    return f".TP\n.B {roff(term)}\n{roff(' '.join(text.split()))}"


def describe(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield usage, text and options of a verb, and of its subcommands in turn."""
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield f".SS {roff(context.command_path)}\n{roff(usage)}"
    yield f".PP\n{roff(' '.join((command.help or '').split()))}"
    for parameter in command.get_params(context):
        if shown := parameter.get_help_record(context):
            yield entry(*shown)
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from describe(below, click.Context(below, info_name=name, parent=context))


def pages() -> Iterator[str]:
    """Yield the parts of the page."""
    root = click.Context(command_line, info_name="draftwise", **command_line.context_settings)
    yield f'.TH DRAFTWISE 1 "" "draftwise {__version__}" "User Commands"'
    yield f".SH NAME\ndraftwise \\- {roff(command_line.help or '').rstrip('.')}"
    yield ".SH SYNOPSIS\n.B draftwise\n.I VERB\n[options] ..."
    yield ".SH VERBS"
    for group, rows in groupby(VERBS.values(), key=lambda row: row.group):
        yield f".SS {roff(str(group))}"
        yield from (entry(row.name, row.summary) for row in rows)
    yield ".SH OPTIONS OF EACH VERB"
    for name in VERBS:
        try:
            command = command_line.get_command(root, name)
            assert command is not None
            yield from list(describe(command, click.Context(command, info_name=name, parent=root)))
        except (ImportError, click.ClickException) as error:
            if name not in NEED_ENGINE:
                raise
            yield f".SS {roff(f'draftwise {name}')}\n{roff(str(error))}"
    yield ".SH EXIT STATUS"
    yield from (entry(str(int(code)), code.meaning) for code in ExitCode)
    yield ".SH SEE ALSO\nhttps://draftwise.dev/"


def main() -> None:
    """Write the page."""
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "draftwise.1"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(pages()) + "\n", encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
