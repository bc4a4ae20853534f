"""The command group: finds a verb's file when it is asked for, and turns errors into lines and exit codes."""

from __future__ import annotations

import gc
import importlib
import io
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import click

from draftwise.core import BackendError, InvalidRequest, InvalidSetup, StorageError, UnreadableSource
from draftwise.verbs import VERBS, Group
from draftwise.version import __version__

__all__ = ["BEGAN", "VerbGroup"]

BEGAN = "draftwise.began_s"
"""In a context's `meta`: when the command began, before its verb's file was imported, on the monotonic clock."""
_EXIT_FINDINGS, _EXIT_USAGE, _EXIT_BACKEND, _EXIT_INTERRUPTED = 1, 2, 3, 130


def _import(name: str) -> ModuleType:
    """Import a verb's module without looking for garbage, of which it leaves none: a tenth of a short verb's time."""
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    return module


class VerbGroup(click.Group):
    """The verbs as commands; `draftwise.cli.serve_command` holds the command `serve`.

    Exit codes: 0 good, 1 findings of severity error, 2 usage, 3 backend failure, 130 interrupted.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(
            **attributes, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
        )
        self.params.append(_version_option())

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command line."""
        _settle_streams()
        return super().main(*arguments, **options)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return sorted(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb's file and return its command; None for an unknown verb."""
        if (row := VERBS.get(cmd_name)) is None:
            return None
        command: click.Command = getattr(_import(f"draftwise.cli.{row.module}_command"), row.module)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by group, without importing them."""
        width = max(map(len, VERBS))
        for group in Group:
            with formatter.section(group):
                rows = [(row.name.ljust(width), row.summary) for row in VERBS.values() if row.group is group]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; one that is misspelled is told what it may have been, and no argument may be empty."""
        _refuse_empty(ctx, args)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # read only when something is misspelled

            near = get_close_matches(args[0][:80], VERBS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]}?", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a mistake of the user or a failed server becomes a message, never a traceback."""
        ctx.meta[BEGAN] = time.monotonic()
        try:
            return super().invoke(ctx)
        except InvalidRequest as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            of_verb = ctx if command is None else click.Context(command, info_name=ctx.invoked_subcommand, parent=ctx)
            raise click.UsageError(" ".join(map(str, error.findings)), of_verb) from None
        except InvalidSetup as error:
            for finding in error.findings:
                click.echo(f"{finding.severity}: {finding}", err=True)
            sys.exit(_EXIT_USAGE if isinstance(error, UnreadableSource) else _EXIT_FINDINGS)
        except (BackendError, StorageError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(_EXIT_BACKEND)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(_EXIT_INTERRUPTED)


def _refuse_empty(ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse what a shell makes of a variable that is not set: an empty path would be the current folder."""
    of_draftwise = args[: args.index("--")] if "--" in args else args
    for before, word in pairwise(("", *of_draftwise)):
        is_empty = not word and before != "--installed"  # for which it means that nothing is
        if is_empty or (word.startswith("--") and word.endswith("=")):
            name = word.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise click.UsageError(f"{name} is empty. Is a variable of the shell not set?", ctx)


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            click.echo(f"draftwise {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version."
    )


class _Pipe(io.FileIO):
    """A file whose reader may leave early: `draftwise check ... | head -1` goes on to its exit code."""

    def write(self, data: object) -> int:
        """Write; what a closed pipe does not take is dropped."""
        try:
            return super().write(data) or 0  # type: ignore[arg-type]  # FileIO.write takes any buffer
        except BrokenPipeError:
            return len(data)  # type: ignore[arg-type]


def _settle_streams() -> None:
    """Replace characters that the encoding lacks by `?` (PYTHONIOENCODING=ascii), and survive closed pipes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        descriptor, is_terminal = sys.stdout.fileno(), sys.stdout.isatty()
    except (OSError, ValueError, AttributeError):  # not a file, closed, or none at all
        return
    if not is_terminal:
        pipe = io.BufferedWriter(_Pipe(descriptor, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(pipe, encoding=sys.stdout.encoding, errors="replace")
