"""The results of a measurement in the form in which two of them are compared, whichever tool made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from draftwise.core import Answer, Arrivals, ClosedLoop, Condition, InvalidSetup, OpenLoop, SpecStats, Timing
from draftwise.knowledge.messages import refusal

ALL_READINGS = ("ttft", "tpot", "itl", "e2e")
ARM, WORKLOAD = "server", "prompts"
"""Names in results of tools that measure one server with one set of prompts, and name neither."""
UNKNOWN_LOAD = "all at once"
"""Condition of a tool without a rate or a limit: every request is sent as soon as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """What a tool says about all requests together, where it kept no single ones; in seconds."""

    mean: float | None
    percentiles: Mapping[float, float]
    """Values by percentile (50, 90, 99, ...)."""
    definition: str
    """Whose and which: aggregates of different definitions are not to be divided by each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResults:
    """One arm on one workload under one condition."""

    workload: str
    condition: str
    arm: str
    answers: tuple[Answer, ...] = ()
    """One per request, by draftwise's definitions; empty where the tool kept aggregates only."""
    readings: tuple[str, ...] = ALL_READINGS
    """Which latencies the answers carry: a tool that kept first and last token only cannot tell ITL."""
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    """Aggregates by the names of `readings`, if their definition is known."""
    num_requests: int = 0
    num_failed: int = 0
    duration_s: float | None = None
    output_tokens_per_s: float | None = None
    """Tokens per second of the whole server, over the tool's own measurement time."""
    spec: SpecStats | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, condition and arm."""
        return self.workload, self.condition, self.arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All cells of one measurement and what is known about how they came about."""

    source: str
    """File or directory."""
    tool: str
    context: Mapping[str, Any]
    """Flat: `model`, `version`, `hardware.cpu`, ...; None where the tool does not record it."""
    cells: tuple[ArmResults, ...]
    notes: tuple[str, ...] = ()
    """How readings were converted, and what could not be."""
    asked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The prompts that were asked, as JSON, by workload; empty where the tool keeps none."""


def make_timing(
    *,
    sent: float,
    ttft_s: float,
    gaps_s: Sequence[float],
    num_tokens: int | None,
    finished: float | None = None,
) -> Timing:
    """Return the timing of a request of which a tool kept the chunks' times and, apart from them, the number of tokens.

    With more tokens than chunks the extra ones are spread evenly (TPOT and tokens per second depend on the sum alone).
    With fewer, some chunks carried none: the opening one of a chat, the closing one with the finish reason. A server
    sends those together with a neighbor, so the chunks that follow another soonest are taken to be empty.
    """
    times = list(accumulate(gaps_s, initial=sent + ttft_s))
    num_tokens = num_tokens or len(times)
    end = times[-1]
    if surplus := max(0, len(times) - num_tokens):
        soonest = sorted(range(1, len(times)), key=lambda i: gaps_s[i - 1])[:surplus]
        times = [time for i, time in enumerate(times) if i not in set(soonest)]
    shares = [num_tokens * (i + 1) // len(times) - num_tokens * i // len(times) for i in range(len(times))]
    return Timing(
        sent=sent,
        chunks=tuple(zip(times, shares, strict=True)),
        finished=end if finished is None else finished,
    )


def make_load_label(*, concurrency: int | None, rate_per_s: float | None, poisson: bool = True) -> str:
    """Return the label of a tool's condition; a limit given with a rate is part of it."""
    if rate_per_s is not None:
        arrivals = Arrivals.POISSON if poisson else Arrivals.CONSTANT
        label = Condition(load=OpenLoop.steady(rate_per_s, arrivals)).label
        return label if concurrency is None else f"{label} at most {concurrency}"
    if concurrency is not None:
        return Condition(load=ClosedLoop(concurrency=concurrency)).label
    return UNKNOWN_LOAD


def parse_percentile(name: str) -> float | None:
    """Return 99.9 for `p99.9`, None for what is no percentile."""
    try:
        return float(name[1:]) if name.startswith("p") else None
    except ValueError:
        return None


def make_unreadable(source: str, why: str) -> InvalidSetup:
    """Return the error for a file that none of the formats fits."""
    return refusal("not-results", source=source, why=why)


def find_setting(settings: Any, name: str) -> Any:
    """Return the first setting of a name, whatever it is nested in: the nesting changes from version to version."""
    return next(_settings(settings, name), None)


def _settings(settings: Any, name: str) -> Iterator[Any]:
    if isinstance(settings, Mapping):
        if settings.get(name) is not None:
            yield settings[name]
        for each in settings.values():
            yield from _settings(each, name)
    elif isinstance(settings, list):
        for each in settings:
            yield from _settings(each, name)
