"""The options of `draftwise decide` that say how servers that run already are reached; secrets come from variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from draftwise.cli._options import add_options
from draftwise.core import InvalidSetup
from draftwise.measure.access import Header

__all__ = ["access_options", "read_headers"]

_VARIABLE = re.compile(r"\$\{(\w+)\}")
access_options = add_options(
    click.option("--url", metavar="URL", help="The baseline's server, if it runs already (instead of TARGET)."),
    click.option("--candidate-url", "candidate_urls", multiple=True, metavar="URL", help="A speculating server."),
    click.option("--metrics-url", "metrics_urls", multiple=True, metavar="[ARM=]URL",
                 help="Page of a server's counters, where a gateway hides /metrics: one per server in their order, "
                 "or by arm (the baseline is `plain`)."),
    click.option("--header", "headers", multiple=True, metavar="[ARM=]'NAME: VALUE'",
                 help="Sent to the URLs; ${VARIABLE} is replaced. ARM.metrics= is for its --metrics-url elsewhere."),
    click.option("--switch", metavar="'COMMAND {arm}'",
                 help="One server at --url: the command that replaces it by another arm's, run without a shell."),
    click.option("--leave", metavar="ARM", help="Which --switch leaves up in the end  [default: plain]"),
    click.option("--api-key-env", "key_variables", multiple=True, metavar="[ARM=]NAME",
                 help="Variable that holds the key of the URLs, or of one."),
)  # fmt: skip


def read_headers(given: Mapping[str, Any]) -> tuple[Header, ...]:
    """Return the headers that the options ask for.

    Raises:
        InvalidSetup: a variable is not set, or a header is none.
    """
    return (*_read_keys(given["key_variables"]), *(Header.parse(_expand(text)) for text in given["headers"]))


def _read_keys(texts: Sequence[str]) -> Iterator[Header]:
    for text in texts:
        arm, _, name = text.rpartition("=")
        key = os.environ.get(name)
        if not key:
            raise InvalidSetup.because("no-api-key", f"{name} is not set.", where="--api-key-env")
        yield Header.of_key(key, arm or None)


def _expand(text: str) -> str:
    def read(found: re.Match[str]) -> str:
        if (value := os.environ.get(found[1])) is None:
            raise InvalidSetup.because("no-such-variable", f"{found[1]} is not set.", where="--header")
        return value

    return _VARIABLE.sub(read, text)
