"""The options of `draftwise decide` that say how servers that run already are reached; secrets come from variables."""

from __future__ import annotations

import click

from draftwise.cli._options import add_options

__all__ = ["access_options"]

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
