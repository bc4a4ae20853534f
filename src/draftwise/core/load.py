"""How requests reach a server: a fixed number in flight, a rate that waits for no answer, or recorded times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Arrivals(StrEnum):
    """How the gaps between the arrivals of an open loop are drawn."""

    POISSON = "poisson"
    """Exponential gaps, as of independent users."""
    CONSTANT = "constant"
    """Equal gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """A fixed number of requests in flight: when one is answered, the next is sent."""

    JSON_KIND: ClassVar[str] = "closed"
    concurrency: int

    @property
    def label(self) -> str:
        """Short name, e.g. `c=8`."""
        return f"c={self.concurrency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A period in which the arrival rate changes linearly from one value to another."""

    start_per_s: float
    end_per_s: float
    duration_s: float | None = None
    """Seconds; None until the prompts run out, for the last phase only."""

    @property
    def label(self) -> str:
        """Short name, e.g. `2/s`, `60s:1-8/s`."""
        rate = (
            f"{self.start_per_s:g}"
            if self.start_per_s == self.end_per_s
            else f"{self.start_per_s:g}-{self.end_per_s:g}"
        )
        return f"{rate}/s" if self.duration_s is None else f"{self.duration_s:g}s:{rate}/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests that are sent at their time, whether or not earlier ones are answered.

    One endless phase is a steady rate; several make ramps and bursts.
    """

    JSON_KIND: ClassVar[str] = "open"
    phases: tuple[Phase, ...]
    arrivals: Arrivals = Arrivals.POISSON

    @classmethod
    def steady(cls, rate_per_s: float, arrivals: Arrivals = Arrivals.POISSON) -> OpenLoop:
        """Return the load of one rate, in requests per second."""
        return cls(phases=(Phase(start_per_s=rate_per_s, end_per_s=rate_per_s),), arrivals=arrivals)

    @property
    def rate_per_s(self) -> float | None:
        """The rate of a steady load; None if it changes."""
        rates = {rate for phase in self.phases for rate in (phase.start_per_s, phase.end_per_s)}
        return rates.pop() if len(rates) == 1 else None

    @property
    def label(self) -> str:
        """Short name, e.g. `2/s`, `2/s constant`, `60s:1-8/s,30s:20/s`."""
        rates = ",".join(phase.label for phase in self.phases)
        return rates if self.arrivals is Arrivals.POISSON else f"{rates} {self.arrivals}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The recorded arrival times of the prompts (`Prompt.arrival_s`), replayed at a multiple of their speed."""

    JSON_KIND: ClassVar[str] = "replay"
    speed: float = 1.0

    @property
    def label(self) -> str:
        """Short name, e.g. `replay`, `replay x2`."""
        return "replay" if self.speed == 1 else f"replay x{self.speed:g}"


Load = ClosedLoop | OpenLoop | Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Load and temperature of a measurement: one point of a sweep, next to arms and workloads."""

    load: Load = ClosedLoop(concurrency=1)
    temperature: float = 0.0

    @property
    def label(self) -> str:
        """Name in files and tables, e.g. `c=8`, `2/s T=0.7`; equal labels are equal conditions."""
        return self.load.label if self.temperature == 0 else f"{self.load.label} T={self.temperature:g}"

    @property
    def concurrency(self) -> int | None:
        """Streams of a closed loop; None for arrivals that do not wait."""
        return self.load.concurrency if isinstance(self.load, ClosedLoop) else None

    @property
    def place(self) -> tuple[str, float] | None:
        """The axis of its load (`concurrency` or `rate`) and the value on it.

        None for ramps, bursts and replays: their load is no single number.
        """
        if self.concurrency is not None:
            return "concurrency", self.concurrency
        rate = self.load.rate_per_s if isinstance(self.load, OpenLoop) else None
        return None if rate is None else ("rate", rate)
