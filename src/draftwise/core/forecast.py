"""Holds the expected worth of speculation under unmeasured loads, which `draftwise forecast` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import ClassVar

from draftwise.core.comparison import Interval
from draftwise.core.documents import Format, json_form
from draftwise.core.finding import Finding


class Outlook(StrEnum):
    """What the interval of a forecast speed-up says."""

    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    TOO_CLOSE = "too close to say"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCell:
    """One server at one draft length under one load; ratios are to the server without speculation."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("tpot_ratio", "verdict")
    setting: str
    """Name of the calibrated server."""
    k: int
    group: str | None
    """Requests of the replayed log that it is about; None for all of them."""
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    load: float
    """Requests in flight, or requests a second."""
    tokens_per_step: float
    batch: float
    """Sequences that decode, in the mean."""
    step_ms: float
    plain_step_ms: float
    speedup: Interval
    """Output tokens a second: of the server where requests wait for one another, of a request at a rate. 90 %."""
    tpot_ms: float
    plain_tpot_ms: float
    ttft_ratio: float
    tokens_per_s: float
    is_extrapolated: bool
    """Whether it decodes more than twice as many sequences as were calibrated."""

    @property
    def verdict(self) -> Outlook:
        """What the interval says."""
        if self.speedup.low > 1:
            return Outlook.PAYS
        return Outlook.DOES_NOT_PAY if self.speedup.high < 1 else Outlook.TOO_CLOSE

    @property
    def tpot_ratio(self) -> float:
        """Time per output token over that without speculation; below 1 is better."""
        return self.tpot_ms / self.plain_tpot_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastCrossover:
    """The load from which a server at one draft length no longer pays."""

    setting: str
    k: int
    group: str | None
    temperature: float
    axis: str
    value: float | None
    """None where it pays over all loads that were looked at, or at none of them."""
    low: float
    """Load up to which the whole interval pays; 0 where it does at none."""
    high: float = field(metadata=json_form(null=inf))
    """Load from which none of the interval pays; infinity where some does up to the end."""


_LIKE = 1.2
"""Tokens a step of a run over those of a replay of like traffic, at most; the interval of 24 requests was a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAgainst:
    """A forecast with the later measurement."""

    setting: str
    workload: str
    load: str
    """Label of the condition, e.g. `c=8`."""
    predicted: float
    measured: float
    measured_low: float
    measured_high: float
    is_inside: bool
    """Whether the measured ratio lies in the interval of the forecast."""
    replayed_tokens_per_step: float | None = None
    """What the forecast rests on; None in files of earlier releases."""
    counted_tokens_per_step: float | None = None
    """What the candidate's server counted; None where it does not say."""

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def of_acceptance(self) -> float | None:
        """Part of the error that acceptance explains: replayed over counted tokens per step, minus 1."""
        if not self.replayed_tokens_per_step or not self.counted_tokens_per_step:
            return None
        return self.replayed_tokens_per_step / self.counted_tokens_per_step - 1

    @property
    def of_steps(self) -> float | None:
        """What is left of it: the time of the candidate's steps against the baseline's, forecast over measured."""
        return None if self.of_acceptance is None else (1 + self.error) / (1 + self.of_acceptance) - 1

    @property
    def is_other_traffic(self) -> bool:
        """Whether so much more or less was accepted than in the replay that the error says nothing of the forecast."""
        replayed, counted = self.replayed_tokens_per_step, self.counted_tokens_per_step
        return replayed is not None and counted is not None and not 1 / _LIKE <= counted / replayed <= _LIKE


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedService:
    """How a thousand requests fare on one server under one load, simulated step by step."""

    setting: str
    k: int
    """0 for the server without speculation."""
    temperature: float | None
    """Temperature of the replayed requests; None for the server without speculation."""
    axis: str
    """`concurrency`, or `rate` (Poisson arrivals)."""
    load: float
    requests: int
    ttft_ms: tuple[float, float, float]
    """Percentiles 50, 90 and 99, waiting included."""
    tpot_ms: tuple[float, float, float]
    e2e_ms: tuple[float, float, float]
    preemptions: int
    """Times that a full pool of keys sent a request back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestServer:
    """What is expected to be fastest under one load."""

    axis: str
    load: float
    group: str | None
    setting: str | None
    """None where nothing is faster than no speculation."""
    k: int
    """0 for no speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of every calibrated server under every load that was asked for."""

    JSON_FORMAT: ClassVar[Format] = Format(name="draftwise-forecast", version=1)
    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("best",)
    target: str
    prompt_tokens: float = field(metadata=json_form(key="traffic.prompt_tokens"))
    """Mean of the requests that it is made for."""
    output_tokens: float = field(metadata=json_form(key="traffic.output_tokens"))
    cells: tuple[ForecastCell, ...]
    crossovers: tuple[ForecastCrossover, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict, metadata=json_form(key="errors_assumed"))
    """Standard deviations of the logarithm of a speed-up that the intervals are made of, by their cause."""
    findings: tuple[Finding, ...] = ()
    simulated: tuple[SimulatedService, ...] = ()
    """Empty where no simulation was asked for."""

    def find_best(self, axis: str, load: float, *, group: str | None = None) -> ForecastCell | None:
        """Return what is expected to be fastest under a load; None where nothing is faster than no speculation."""
        here = [each for each in self.cells if (each.axis, each.load, each.group) == (axis, load, group)]
        found = max(here, key=lambda each: each.speedup.value, default=None)
        return found if found is not None and found.speedup.value > 1 else None

    @property
    def best(self) -> tuple[FastestServer, ...]:
        """What is expected to be fastest, by load and group."""
        places = dict.fromkeys((each.axis, each.load, each.group) for each in self.cells)
        found = ((place, self.find_best(place[0], place[1], group=place[2])) for place in places)
        return tuple(
            FastestServer(
                axis=axis, load=load, group=group, setting=each.setting if each else None, k=each.k if each else 0
            )
            for (axis, load, group), each in found
        )
