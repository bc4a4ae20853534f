"""`draftwise verify`: whether files, or a server that runs, are what was decided and ordered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from draftwise.cli._findings import fail_option, render, shape_options, show_judgements
from draftwise.verbs.verify import VerifyRequest
from draftwise.verbs.verify import verify as run_verify

__all__ = ["render", "verify"]


@click.command(short_help="Prove that files, or a server that runs, are what was decided.")
@click.argument("source", required=False)
@click.option("--setup", type=click.Path(path_type=Path), metavar="FILE",
              help="What was ordered  [default: setup.json in the folder of SOURCE]")  # fmt: skip
@click.option("--returned", metavar="FILE|-",
              help="What `kubectl apply --dry-run=server -o json` printed of SOURCE: what was dropped?")  # fmt: skip
@click.option("--against", metavar="URL", help="A server without speculation: are the outputs of SOURCE its own?")
@click.option("--answers", is_flag=True,
              help="Compare answers with --against: cached prefixes, tools, a JSON schema, long contexts.")  # fmt: skip
@click.option("--expected", type=click.FloatRange(min=1), metavar="TOKENS",
              help="Tokens per step that this very probe saw before; fewer are an error.")  # fmt: skip
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE",
              help="With what it answered to this probe before: are engine and drafter the same?")  # fmt: skip
@click.option("--prompts", type=click.IntRange(3, 60), default=24, show_default=True, metavar="N",
              help="Prompts of the probe, 64 output tokens each, at temperature 0.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'",
              help="Sent to the URLs; ${VARIABLE} is replaced.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="NAME",
              help="Variable that holds the key of the URLs.")  # fmt: skip
@click.option("--log", metavar="FILE|-", help="The start-up log of vLLM, instead of SOURCE or beside it.")
@click.option("--kubectl", metavar="FILE|-",
              help="What `kubectl get pod NAME -o yaml` printed of it: is it that, and ready?")  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Such as H200, where SOURCE does not name it: does it fit?")
@shape_options
@fail_option
def verify(shape: str, as_json: bool, **given: Any) -> None:
    """Say every difference between SOURCE and what was ordered.

    SOURCE is a folder that `draftwise deploy` wrote (its sums, both twins read back, judged and sized), or any manifest
    beside the setup that it is to start, or the URL of a server, which is asked a few prompts. What could not be seen
    is said to be unknown.

    The exit code is 0 if nothing of the severity --fail-on was found, 1 if something was, 2 if a source is not there or
    cannot be opened, and 3 if a server does not answer.

    \b
    Examples:
      draftwise verify deploy/
      draftwise verify my-manifest.yaml --setup deploy/setup.json --format sarif > verify.sarif
      draftwise verify http://llama-canary:8000 --setup deploy/setup.json --against http://llama-plain:8000
      draftwise verify http://llama-canary:8000 --answers --against http://llama-plain:8000
      draftwise verify http://llama:8000 --setup deploy/setup.json --baseline deploy/baseline.json
      kubectl logs deployment/llama | draftwise verify --log - --setup deploy/setup.json
      kubectl get pods -l app.kubernetes.io/name=llama -o yaml | draftwise verify --kubectl - --setup deploy/setup.json
      kubectl apply --dry-run=server -o json -f deploy/spec.yaml | draftwise verify deploy/spec.yaml --returned -
    """
    result = run_verify.run(VerifyRequest(**given))
    show_judgements(result, "json" if as_json else shape)
    if shape == "table" and not as_json:
        for text, command in result.commands:
            click.echo(f"# {text}\n{command}")
    if result.exit_code:
        sys.exit(result.exit_code)
