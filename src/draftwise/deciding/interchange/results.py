"""Defines the common form of measurement results, which makes runs of different tools comparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from draftwise.core import Answer, Arrivals, ClosedLoop, Condition, InvalidSetup, OpenLoop, SpecStats, Timing
from draftwise.knowledge.messages import refusal

ALL_READINGS = ("ttft", "tpot", "itl", "e2e")
ARM, WORKLOAD = "server", "prompts"
"""Names used for tools that measure one server with one set of prompts and name neither."""
UNKNOWN_LOAD = "all at once"
"""Condition of a tool without rate or limit, which sends each request as soon as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Statistics over all requests, in seconds, from a tool that kept no single requests."""

    mean: float | None
    percentiles: Mapping[float, float]
    """Values by percentile (50, 90, 99, ...)."""
    definition: str
    """Tool and definition. Do not divide aggregates of different definitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResults:
    """One arm on one workload under one condition."""

    workload: str
    condition: str
    arm: str
    answers: tuple[Answer, ...] = ()
    """One per request, by draftwise's definitions; empty if the tool kept only aggregates."""
    readings: tuple[str, ...] = ALL_READINGS
    """Latencies that the answers carry. First and last token alone, for example, give no ITL."""
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)
    """Aggregates by reading, if their definition is known."""
    num_requests: int = 0
    num_failed: int = 0
    duration_s: float | None = None
    output_tokens_per_s: float | None = None
    """Output tokens per second of the whole server, over the tool's measurement time."""
    spec: SpecStats | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, condition and arm."""
        return self.workload, self.condition, self.arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All cells of one measurement, with its context."""

    source: str
    """File or directory."""
    tool: str
    context: Mapping[str, Any]
    """Flat mapping: `model`, `version`, `hardware.cpu`, ...; None for values that the tool does not record."""
    cells: tuple[ArmResults, ...]
    notes: tuple[str, ...] = ()
    """How readings were converted, and which could not be."""
    asked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Prompts as JSON by workload; empty if the tool keeps none."""


def make_timing(
    *,
    sent: float,
    ttft_s: float,
    gaps_s: Sequence[float],
    num_tokens: int | None,
    finished: float | None = None,
) -> Timing:
    """Return a request's timing from chunk times and a separate token count.

    Extra tokens are spread evenly over the chunks: TPOT and tokens per second depend only on the sum. With fewer tokens
    than chunks, some chunks were empty, such as a chat's opening one and the one with the finish reason. A server sends
    those together with a neighbor, so the chunks with the shortest gaps count as empty.
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
    """Return the label of a tool's condition, including a concurrency limit given with a rate."""
    if rate_per_s is not None:
        arrivals = Arrivals.POISSON if poisson else Arrivals.CONSTANT
        label = Condition(load=OpenLoop.steady(rate_per_s, arrivals)).label
        return label if concurrency is None else f"{label} at most {concurrency}"
    if concurrency is not None:
        return Condition(load=ClosedLoop(concurrency=concurrency)).label
    return UNKNOWN_LOAD


def parse_percentile(name: str) -> float | None:
    """Return 99.9 for `p99.9`; None for any other name."""
    try:
        return float(name[1:]) if name.startswith("p") else None
    except ValueError:
        return None


def make_unreadable(source: str, why: str) -> InvalidSetup:
    """Return the error for a file of unknown format."""
    return refusal("not-results", source=source, why=why)


def find_setting(settings: Any, name: str) -> Any:
    """Return the first setting with a name, at any depth: nesting changes between versions."""
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
