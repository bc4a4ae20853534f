"""`draftwise verify`: compares files, or a running server, with the decided and ordered setup."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwise.cli._findings import render, show_judgements
from draftwise.cli._options import options
from draftwise.verbs.verify import VerifyRequest
from draftwise.verbs.verify import verify as run_verify

__all__ = ["render", "verify"]


@click.command(short_help="Check that files or a running server match the decision.")
@click.argument("source", required=False)
@options("verify", of=VerifyRequest, expected=click.FloatRange(min=1))
def verify(shape: str, as_json: bool, **given: Any) -> None:
    """List the differences between SOURCE and the deployed setup.

    SOURCE is a folder that `draftwise deploy` wrote (checksums, and both twins read back, judged and sized); any
    manifest, with --setup; or the URL of a server, which gets a few prompts. Anything that could not be checked is
    reported as unknown.

    The exit code is 0 if nothing reaches --fail-on, 1 if something does, 2 if a source does not exist or cannot be
    opened, and 3 if a server does not answer.

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
