"""Defines the options of `draftwise decide` for load: requests in flight, temperatures, draft lengths."""

from __future__ import annotations

from functools import partial

import click

from draftwise.cli._options import Duration, Finite, ParsedOption, add_options
from draftwise.core import Arrivals
from draftwise.verbs.loads import read_numbers, read_phases

WHOLE_NUMBERS = ParsedOption(partial(read_numbers, least=1, whole=True), "numbers")
_RATES = ParsedOption(partial(read_numbers, least=0, open_end=True), "numbers")
_TEMPERATURES = ParsedOption(partial(read_numbers, least=0), "numbers")
_PHASES = ParsedOption(read_phases, "phases")


load_options = add_options(
    click.option("--concurrency", type=WHOLE_NUMBERS, metavar="N[,N...]",
                 help="Requests in flight (closed loop)  [default: 1]"),
    click.option("--rate", type=_RATES, metavar="R[,R...]",
                 help="Send this many requests per second without waiting for replies (open loop)."),
    click.option("--arrivals", type=click.Choice([each.value for each in Arrivals]), default=Arrivals.POISSON.value,
                 show_default=True, help="Gaps between requests of an open loop."),
    click.option("--phases", type=_PHASES, metavar="PHASES", help="Ramps and bursts, e.g. '60s:1-8/s,30s:20/s'."),
    click.option("--replay", type=Finite(0, min_open=True), is_flag=False, flag_value=1.0, metavar="SPEED",
                 help="Replay recorded arrival times; 2 means twice as fast  [1 if given alone]"),
    click.option("--turn-seconds", type=Duration(0, min_open=True), default=20, show_default=True,
                 help="Duration of a turn at a steady rate."),
    click.option("--temperature", "temperatures", type=_TEMPERATURES, default="0", show_default=True,
                 metavar="T[,T...]", help="Sampling temperatures."),
    click.option("--k", "lengths", type=WHOLE_NUMBERS, metavar="K[,K...]",
                 help="Try every candidate with these num_speculative_tokens."),
)  # fmt: skip
