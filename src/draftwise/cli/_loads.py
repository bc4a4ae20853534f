"""Defines the options of `draftwise decide` for load: requests in flight, temperatures, draft lengths."""

from __future__ import annotations

from functools import partial

import click

from draftwise.cli._options import Duration, Finite, ParsedOption, add_options, option
from draftwise.core import Arrivals
from draftwise.verbs.loads import read_numbers, read_phases

WHOLE_NUMBERS = ParsedOption(partial(read_numbers, least=1, whole=True), "numbers")
_RATES = ParsedOption(partial(read_numbers, least=0, open_end=True), "numbers")
_TEMPERATURES = ParsedOption(partial(read_numbers, least=0), "numbers")
_PHASES = ParsedOption(read_phases, "phases")


load_options = add_options(
    option("--concurrency N[,N...]", "Requests in flight (closed loop)  [default: 1]", type=WHOLE_NUMBERS),
    option("--rate R[,R...]", "Send this many requests per second without waiting for replies (open loop).",
           type=_RATES),
    click.option("--arrivals", type=click.Choice([each.value for each in Arrivals]), default=Arrivals.POISSON.value,
                 show_default=True, help="Gaps between requests of an open loop."),
    option("--phases PHASES", "Ramps and bursts, e.g. '60s:1-8/s,30s:20/s'.", type=_PHASES),
    option("--replay SPEED", "Replay recorded arrival times; 2 means twice as fast  [1 if given alone]",
           type=Finite(0, min_open=True), is_flag=False, flag_value=1.0),
    option("--turn-seconds", "Duration of a turn at a steady rate.",
           type=Duration(0, min_open=True), default=20, show_default=True),
    option("--temperature T[,T...]", "temperatures", "Sampling temperatures.",
           type=_TEMPERATURES, default="0", show_default=True),
    option("--k K[,K...]", "lengths", "Try every candidate with these num_speculative_tokens.", type=WHOLE_NUMBERS),
)  # fmt: skip
