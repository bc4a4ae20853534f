"""`draftwise report`: make a run's report again from its raw readings, or give it to others."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from draftwise.cli._console import open_console
from draftwise.cli._context import context_option, read_notes
from draftwise.cli._decision import show_decision
from draftwise.core import InvalidSetup, StorageError
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.deciding.interchange import FORMATS, export_run
from draftwise.machine.whole_files import write_whole
from draftwise.measure.context import add_notes
from draftwise.reporting.markdown import render_markdown
from draftwise.reporting.page import write_conclusions
from draftwise.runs import RunDirectory

__all__ = ["report"]

_STDOUT = "-"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@context_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.option("--markdown", metavar="FILE|-", help="Write it as Markdown for a pull request too; - is stdout.")
@click.option("--export", "exports", multiple=True, metavar="FORMAT=FILE",
              help=f"Write the readings for other tools: {', '.join(FORMATS)}; FILE/ for a file per cell.")  # fmt: skip
def report(run: Path, notes: Sequence[str], as_json: bool, markdown: str | None, exports: Sequence[str]) -> None:
    """Make report.html and summary.json of RUN again, from the raw readings alone.

    --context adds to RUN what its servers did not tell when it was measured.

    The exit code is 1 if there is a finding of severity error.
    """
    if as_json and markdown == _STDOUT:
        raise click.UsageError("Both --json and --markdown - write to stdout: give --markdown a file.")
    wanted = [_parse_export(text) for text in exports]
    directory = RunDirectory(run)
    if notes:
        measured = directory.read()
        directory.begin(measured.plan, add_notes(measured, read_notes(notes)))
    found = conclude_run(directory.read())
    decision, summary = write_conclusions(directory, found)
    show_decision(open_console(stderr=as_json or markdown == _STDOUT), decision, found.run)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    if markdown is not None:
        _write_markdown(found, markdown)
    for name, path in wanted:
        for file in export_run(found.run, name, path):
            click.echo(f"Written: {file}", err=True)
    click.echo(f"\nReport: {directory.path / 'report.html'}", err=True)
    sys.exit(1 if decision.has_error else 0)


def _parse_export(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if name not in FORMATS or not equals or not path:
        raise InvalidSetup.because(
            "export-format",
            f"{text!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}.",
            where="--export",
            fix="E.g. --export vllm-bench=results.json",
        )
    # `Path` would drop the slash that asks for a folder.
    if path.endswith("/"):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{path}: cannot be made ({error.strerror}). Give another folder.") from None
    return name, Path(path)


def _write_markdown(found: Conclusions, target: str) -> None:
    text = render_markdown(found)
    if target == _STDOUT:
        click.echo(text, nl=False)
        return
    try:
        write_whole(Path(target), text)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written ({error.strerror}). Give another path or make room.") from None
    click.echo(f"Written: {target}", err=True)
