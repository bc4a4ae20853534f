"""The expected speed-up under unmeasured loads, as `draftwise forecast` writes it."""

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
    """Group of the replayed log; None for all requests."""
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    load: float
    """Requests in flight, or requests per second."""
    tokens_per_step: float
    batch: float
    """Mean number of sequences that decode."""
    step_ms: float
    plain_step_ms: float
    speedup: Interval
    """Output tokens per second, 90 % interval: of the server in a closed loop, of a request at a rate."""
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
        """Ratio of times per output token to those without speculation; below 1 is better."""
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
    """None if it pays at all loads of the forecast, or at none."""
    low: float
    """Load up to which the whole interval pays; 0 if it does at none."""
    high: float = field(metadata=json_form(null=inf))
    """Load from which no part of the interval pays; infinity if some part does up to the end."""


_LIKE = 1.2
"""Tokens a step of a run over those of a replay of like traffic, at most; the interval of 24 requests was a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAgainst:
    """A forecast and the later measurement."""

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
    """Tokens per step that the forecast assumed; None in files of earlier releases."""
    counted_tokens_per_step: float | None = None
    """Tokens per step that the candidate's server counted; None if not reported."""

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
        """The rest of the error: time of the candidate's steps over the baseline's, forecast over measured, minus 1."""
        return None if self.of_acceptance is None else (1 + self.error) / (1 + self.of_acceptance) - 1

    @property
    def is_other_traffic(self) -> bool:
        """Whether acceptance differs so much from the replay's that the error says nothing about the forecast."""
        replayed, counted = self.replayed_tokens_per_step, self.counted_tokens_per_step
        return replayed is not None and counted is not None and not 1 / _LIKE <= counted / replayed <= _LIKE


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedService:
    """Latencies of a thousand requests on one server under one load, simulated step by step."""

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
    """P50, P90 and P99 in milliseconds, waiting included."""
    tpot_ms: tuple[float, float, float]
    e2e_ms: tuple[float, float, float]
    preemptions: int
    """How often a full KV cache preempted a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestServer:
    """The server expected to be fastest under one load."""

    axis: str
    load: float
    group: str | None
    setting: str | None
    """None if plain decoding is fastest."""
    k: int
    """0 for no speculation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for every calibrated server under every requested load."""

    JSON_FORMAT: ClassVar[Format] = Format(name="draftwise-forecast", version=1)
    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("best",)
    target: str
    prompt_tokens: float = field(metadata=json_form(key="traffic.prompt_tokens"))
    """Mean prompt tokens of the requests."""
    output_tokens: float = field(metadata=json_form(key="traffic.output_tokens"))
    cells: tuple[ForecastCell, ...]
    crossovers: tuple[ForecastCrossover, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict, metadata=json_form(key="errors_assumed"))
    """Standard deviations behind the intervals, of the logarithm of the speed-up, by cause."""
    findings: tuple[Finding, ...] = ()
    simulated: tuple[SimulatedService, ...] = ()
    """Empty if no simulation was requested."""

    def find_best(self, axis: str, load: float, *, group: str | None = None) -> ForecastCell | None:
        """Return the cell expected to be fastest under a load; None if plain decoding is."""
        here = [each for each in self.cells if (each.axis, each.load, each.group) == (axis, load, group)]
        found = max(here, key=lambda each: each.speedup.value, default=None)
        return found if found is not None and found.speedup.value > 1 else None

    @property
    def best(self) -> tuple[FastestServer, ...]:
        """The servers expected to be fastest, by load and group."""
        places = dict.fromkeys((each.axis, each.load, each.group) for each in self.cells)
        found = ((place, self.find_best(place[0], place[1], group=place[2])) for place in places)
        return tuple(
            FastestServer(
                axis=axis, load=load, group=group, setting=each.setting if each else None, k=each.k if each else 0
            )
            for (axis, load, group), each in found
        )
