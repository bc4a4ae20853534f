"""Defines the options of `draftwise decide` for load: requests in flight, temperatures, draft lengths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from draftwise.cli._options import Duration, Finite, ParsedOption
from draftwise.core import Arrivals
from draftwise.verbs.loads import read_numbers, read_phases

WHOLE_NUMBERS = ParsedOption(partial(read_numbers, least=1, whole=True), "numbers")
_RATES = ParsedOption(partial(read_numbers, least=0, open_end=True), "numbers")
_TEMPERATURES = ParsedOption(partial(read_numbers, least=0), "numbers")
_PHASES = ParsedOption(read_phases, "phases")


LOAD_TYPES: Mapping[str, Any] = {
    "concurrency": WHOLE_NUMBERS, "rate": _RATES, "arrivals": click.Choice([each.value for each in Arrivals]),
    "phases": _PHASES, "replay": Finite(0, min_open=True), "turn_seconds": Duration(0, min_open=True),
    "temperatures": _TEMPERATURES, "lengths": WHOLE_NUMBERS,
}  # fmt: skip
