"""`draftwise schema`: JSON Schemas, of `--speculative-config` in a release and of what the verbs print as JSON."""

from __future__ import annotations

import json
from importlib.resources import files

import click

from draftwise.cli._setups import nearest_option, open_release
from draftwise.plan.schema import make_schema

__all__ = ["schema"]

_OUTPUTS = files("draftwise.cli").joinpath("schemas")
_VERBS = (
    *("bundle", "calibrate", "check", "compare", "decide", "deploy", "explain", "facts", "fetch", "forecast", "guard"),
    *("inspect", "pick", "replay", "report", "schedule", "size", "train", "upgrade", "verify", "watch"),
)


@click.command(short_help="Print a JSON Schema: of --speculative-config, or of a verb's JSON.")
@click.argument("verb", required=False, type=click.Choice(_VERBS))
@click.option("--vllm", "version", default="newest", show_default=True, metavar="VERSION")
@nearest_option
def schema(verb: str | None, version: str, nearest: bool) -> None:
    """Print the JSON Schema of --speculative-config in a vLLM release, by which editors complete and check it.

    With VERB, print the schema of what `draftwise VERB --json` prints.

    \b
    Examples:
      draftwise schema --vllm 0.33.0 > speculative-config.schema.json
      draftwise schema check
    """
    if verb is not None:
        click.echo(_OUTPUTS.joinpath(f"{verb}.json").read_text(encoding="utf-8"), nl=False)
        return
    release = open_release(version, nearest=nearest)
    made = make_schema(release)
    if release.asked:
        made["description"] = f"Asked for {release.asked}, made of {release}."
    click.echo(json.dumps(made, indent=1))
