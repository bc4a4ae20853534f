"""Loads, temperatures and draft lengths as requests give them: numbers, or text such as `1,8,64` and `60s:1-8/s`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from draftwise.core import Arrivals, ClosedLoop, Condition, Load, OpenLoop, Phase, Replay
from draftwise.verbs.verb import refuse

_RANGE = re.compile(r"(?P<first>[\d.]+)-(?P<last>[\d.]+)")
_PHASE = re.compile(r"(?:(?P<duration>[\d.]+)s:)?(?P<start>[\d.]+)(?:-(?P<end>[\d.]+))?/s")
_PHASE_HELP = "is not like '60s:1-8/s,30s:20/s' (seconds, then requests per second; the last part may have no end)"


def read_numbers(
    given: str | float | Iterable[float], *, of: str = "", least: float, whole: bool = False, open_end: bool = False
) -> tuple[float, ...]:
    """Return numbers, each once, in the order given.

    Args:
        given: text with commas between the numbers, or the numbers.
        of: field that holds them; empty if the caller names it.
        least: smallest number allowed.
        whole: takes whole numbers only.
        open_end: excludes `least` itself.

    Raises:
        InvalidRequest: the text is not a list of numbers, or a number is out of range.
    """
    kind, subject = int if whole else float, f"{of}: " if of else ""
    parts = given.split(",") if isinstance(given, str) else [given] if isinstance(given, int | float) else given
    try:
        numbers = tuple(dict.fromkeys(kind(part) for part in parts))
    except (ValueError, OverflowError):
        refuse(f"{subject}{given!r} is not a list of {'whole numbers' if whole else 'numbers'} like 1,2,4.", where=of)
    for number in numbers:
        if not abs(number) < 10**15:
            said = "too large" if abs(number) < math.inf else "not a finite number"
            refuse(f"{subject}{str(number)[:40]} is {said}.", where=of)
        if number < least or (open_end and number == least):
            refuse(f"{subject}{number:g} is {'not above' if open_end else 'below'} {least:g}.", where=of)
    return numbers


def read_range(given: str | float | Iterable[float]) -> tuple[float, ...]:
    """Return distinct loads in ascending order.

    Args:
        given: loads; text with commas between them; or a range such as `1-128`, taken in steps of a factor of two.

    Raises:
        InvalidRequest: it has another form.
    """
    if not isinstance(given, str):
        loads = tuple(sorted({given} if isinstance(given, int | float) else set(given)))
    else:
        try:
            found = _RANGE.fullmatch(given)
            numbers = _double(float(found["first"]), float(found["last"])) if found else map(float, given.split(","))
            loads = tuple(sorted(set(numbers)))
        except ValueError:
            refuse(f"{given!r} is neither a list like 1,8,64 nor a range like 1-256.")
    if not loads or not all(math.isfinite(load) and load > 0 for load in loads):
        refuse(f"{given!r}: loads must be above 0, and a range must end above its start.")
    return loads


def _double(first: float, last: float) -> Iterator[float]:
    """Yield a range in steps of a factor of two, its end included. Nothing for one that ends before it begins."""
    if not 0 < first <= last:
        return
    while first < last:
        yield first
        first *= 2
    yield last


def read_phases(given: str | Sequence[Phase]) -> tuple[Phase, ...]:
    """Return stretches of rising, falling or steady arrival rates.

    Raises:
        InvalidRequest: the text is not a list of phases.
    """
    if not isinstance(given, str):
        return tuple(given)
    phases = [_read_phase(part.strip(), given) for part in given.split(",")]
    if any(phase.duration_s is None for phase in phases[:-1]):
        refuse(f"{given!r}: only the last part may omit its duration.")
    if sum((phase.start_per_s + phase.end_per_s) * (phase.duration_s or 1) for phase in phases) == 0:
        refuse(f"{given!r}: no request would ever arrive.")
    return tuple(phases)


def _read_phase(part: str, whole: str) -> Phase:
    found = _PHASE.fullmatch(part)
    try:
        if found is None:
            raise ValueError
        start = float(found["start"])
        end = start if found["end"] is None else float(found["end"])
        duration = None if found["duration"] is None else float(found["duration"])
    except ValueError:
        refuse(f"{whole!r} {_PHASE_HELP}.")
    if duration == 0:
        refuse(f"{whole!r}: a part has a duration of 0.")
    if duration is None and start != end:
        refuse(f"{whole!r}: a changing rate needs a duration.")
    return Phase(start_per_s=start, end_per_s=end, duration_s=duration)


def make_conditions(
    *,
    concurrency: str | float | Iterable[float] = (),
    rate: str | float | Iterable[float] = (),
    arrivals: Arrivals | str = Arrivals.POISSON,
    phases: str | Sequence[Phase] = (),
    replay: float | None = None,
    temperatures: str | float | Iterable[float] = (0.0,),
) -> tuple[Condition, ...]:
    """Return the product of loads and temperatures; without a load, that of one request in flight.

    Args:
        concurrency: requests in flight, of closed loops.
        rate: requests per second, of open loops.
        arrivals: gaps between the requests of open loops.
        phases: ramps and bursts, of one open loop.
        replay: speed at which recorded arrival times are replayed; None for no replay.
        temperatures: of sampling.

    Raises:
        InvalidRequest: a text or number cannot be used.
    """
    if arrivals not in tuple(Arrivals):
        refuse(f"Unknown arrivals {arrivals!r}: give one of {', '.join(Arrivals)}.", where="--arrivals")
    gaps = Arrivals(arrivals)
    streams = read_numbers(concurrency, of="concurrency", least=1, whole=True)
    loads: list[Load] = [ClosedLoop(concurrency=int(number)) for number in streams]
    loads += [OpenLoop.steady(number, gaps) for number in read_numbers(rate, of="rate", least=0, open_end=True)]
    if phases:
        loads.append(OpenLoop(phases=read_phases(phases), arrivals=gaps))
    if replay:
        loads.append(Replay(speed=replay))
    found = product(read_numbers(temperatures, of="temperatures", least=0), loads or [ClosedLoop(concurrency=1)])
    return tuple(Condition(load=load, temperature=temperature) for temperature, load in found)
