"""The options of `draftwise decide` that say under what a workload is answered: loads, temperatures, draft lengths."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import click

from draftwise.cli._options import add_options
from draftwise.core import Arrivals, ClosedLoop, Condition, Load, OpenLoop, Phase, Replay

__all__ = ["Finite", "Numbers", "conditions", "load_options"]

_PHASE = re.compile(r"(?:(?P<duration>[\d.]+)s:)?(?P<start>[\d.]+)(?:-(?P<end>[\d.]+))?/s")
_PHASE_HELP = "is not like '60s:1-8/s,30s:20/s' (seconds, then requests per second; the last part may have no end)"


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """One number, or several with commas between them."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float], *, least: float, open_end: bool = False) -> None:
        self._kind, self._least, self._open = kind, least, open_end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers, each once, in the order given."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(dict.fromkeys(self._kind(part) for part in value.split(",")))
        except ValueError:
            kind = "whole numbers" if self._kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {kind} like 1,2,4.", param, ctx)
        for number in numbers:
            if not math.isfinite(number):
                self.fail(f"{number} is not a finite number.", param, ctx)
            if number < self._least or (self._open and number == self._least):
                self.fail(f"{number:g} is {'not above' if self._open else 'below'} {self._least:g}.", param, ctx)
        return numbers


class Finite(click.FloatRange):
    """A number of a range that has ends even where it says none: not nan, not inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Phases(click.ParamType):  # type: ignore[type-arg]
    """Stretches of rising, falling or steady arrival rates."""

    name = "phases"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Phase, ...]:
        """Return the phases."""
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        phases = [self._parse(part.strip(), value, param, ctx) for part in parts]
        if any(phase.duration_s is None for phase in phases[:-1]):
            self.fail(f"{value!r}: only the last part may be without a duration.", param, ctx)
        if sum((phase.start_per_s + phase.end_per_s) * (phase.duration_s or 1) for phase in phases) == 0:
            self.fail(f"{value!r}: nothing would ever arrive.", param, ctx)
        return tuple(phases)

    def _parse(self, part: str, whole: str, param: click.Parameter | None, ctx: click.Context | None) -> Phase:
        found = _PHASE.fullmatch(part)
        try:
            if found is None:
                raise ValueError
            start = float(found["start"])
            end = start if found["end"] is None else float(found["end"])
            duration = None if found["duration"] is None else float(found["duration"])
        except ValueError:
            self.fail(f"{whole!r} {_PHASE_HELP}.", param, ctx)
        if duration == 0:
            self.fail(f"{whole!r}: a part lasts no time.", param, ctx)
        if duration is None and start != end:
            self.fail(f"{whole!r}: a rate that changes needs a duration.", param, ctx)
        return Phase(start_per_s=start, end_per_s=end, duration_s=duration)


load_options = add_options(
    click.option("--concurrency", type=Numbers(int, least=1), metavar="N[,N...]",
                 help="Closed loop: requests in flight  [default: 1]"),
    click.option("--rate", type=Numbers(float, least=0, open_end=True), metavar="R[,R...]",
                 help="Open loop: requests per second, whether answered or not."),
    click.option("--arrivals", type=click.Choice([each.value for each in Arrivals]), default=Arrivals.POISSON.value,
                 show_default=True, help="Gaps between the requests of an open loop."),
    click.option("--phases", type=Phases(), metavar="PHASES", help="Ramps and bursts, e.g. '60s:1-8/s,30s:20/s'."),
    click.option("--replay", type=Finite(0, min_open=True), is_flag=False, flag_value=1.0, metavar="SPEED",
                 help="The workload's recorded arrival times, so many times as fast  [1 if given alone]"),
    click.option("--turn-seconds", type=Finite(0, min_open=True), default=20, show_default=True,
                 help="How long a turn of a steady rate lasts."),
    click.option("--temperature", "temperatures", type=Numbers(float, least=0), default="0", show_default=True,
                 metavar="T[,T...]"),
    click.option("--k", "lengths", type=Numbers(int, least=1), metavar="K[,K...]",
                 help="Try every candidate with these num_speculative_tokens."),
)  # fmt: skip


def conditions(given: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Return the product of loads and temperatures that the options ask for."""
    return tuple(
        Condition(load=load, temperature=temperature)
        for temperature, load in product(given["temperatures"], _loads(given))
    )


def _loads(given: Mapping[str, Any]) -> list[Load]:
    arrivals = Arrivals(given["arrivals"])
    loads: list[Load] = [ClosedLoop(concurrency=int(number)) for number in given["concurrency"] or ()]
    loads += [OpenLoop.steady(rate, arrivals) for rate in given["rate"] or ()]
    if given["phases"]:
        loads.append(OpenLoop(phases=given["phases"], arrivals=arrivals))
    if given["replay"]:
        loads.append(Replay(speed=given["replay"]))
    return loads or [ClosedLoop(concurrency=1)]
