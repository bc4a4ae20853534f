"""Measured step times of servers, as `draftwise calibrate` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from draftwise.core.documents import Format, json_form
from draftwise.core.forecast import HeldAgainst
from draftwise.core.setup import SpecConfig

_MOST_TOKENS = 1e12
"""Largest batch or context; a larger value is damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """Steps of one kind on one server: sequences that decode together, with or without prompts in the step."""

    setting: str
    load: str
    """Label of the condition under which they were measured, e.g. `c=8`."""
    workload: str = ""
    """Workload whose text was decoded; the number of draft tokens may depend on it."""
    batch: float
    """Mean number of sequences that decoded."""
    context: float
    """Mean length of their contexts, in tokens."""
    prefill_tokens: float = 0.0
    """Tokens of prompts computed in the same step."""
    drafted: float = 0.0
    """Mean draft tokens per sequence and step; below k if a method finds fewer."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and step on the calibration's text, which does not represent traffic."""
    step_ms: float
    low: float
    """Lower end of the 95 % interval of `step_ms`."""
    high: float
    steps: int
    """Number of steps behind the mean."""
    source: str = "stream"
    """`stream`: gaps between the chunks of streamed answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPoint:
    """First tokens of one server under one load. A request waits longer for its own than the step of its prompt."""

    setting: str
    load: str
    """Label of the condition under which they were measured, e.g. `c=8`."""
    workload: str = ""
    in_flight: float
    """Requests."""
    prompt_tokens: float
    """Mean prompt tokens computed per request."""
    output_tokens: float
    """Mean tokens of an answer."""
    tokens_per_step: float = 1.0
    """Mean tokens per sequence and step."""
    drafted: float = 0.0
    """Mean draft tokens per sequence and step."""
    first_ms: float
    """Mean time from a request to its first token."""
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedSetting:
    """A server that was measured: the baseline or a candidate."""

    name: str
    spec: SpecConfig | None = field(default=None, metadata=json_form(key="speculative_config"))
    """None for the baseline."""
    drafter: Mapping[str, Any] | None = field(default=None, metadata=json_form(key="drafter_config"))
    """config.json of its drafter; None without a drafter, or if unknown."""
    kv_tokens: int | None = None
    """Tokens that its KV cache holds; None if the server does not report it."""

    @property
    def k(self) -> int:
        """Maximum draft tokens per sequence and step."""
        return (self.spec.num_speculative_tokens or 0) if self.spec is not None else 0

    @property
    def is_plain(self) -> bool:
        """Whether it does not speculate."""
        return self.spec is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Steps measured on servers of one target, which differ only in their speculative config.

    Everything else is derived from the points, so a newer draftwise may fit them better.
    """

    JSON_FORMAT: ClassVar[Format] = Format(
        name="draftwise-calibration",
        version=1,
        noun="a calibration",
        foreign="not-a-calibration",
        other_version="calibration-version",
        damaged="damaged-calibration",
        written_by="a file that `draftwise calibrate` wrote",
        again="Write it again from its run directory: `draftwise calibrate --from DIR`.",
    )
    made: str = ""
    """Date and time, UTC."""
    hardware: str = ""
    """The machine in words."""
    gpu: str | None = None
    """Name in the table of GPUs; None for a CPU, and for a GPU that is not in the table."""
    engine: str = field(metadata=json_form(key="engine.name"))
    engine_version: str = field(default="", metadata=json_form(key="engine.version"))
    args: Mapping[str, Any] = field(default_factory=dict, metadata=json_form(key="engine.args"))
    """Engine flags of all settings."""
    target: str = field(metadata=json_form(key="target.name"))
    config: Mapping[str, Any] = field(metadata=json_form(key="target.config"))
    """The target's config.json."""
    settings: tuple[CalibratedSetting, ...]
    points: tuple[StepPoint, ...]
    firsts: tuple[FirstPoint, ...] = ()
    held: tuple[HeldAgainst, ...] = field(default=(), metadata=json_form(key="held_against"))
    """Earlier forecasts made from it, with the later measurements: they widen the next intervals."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.settings]
        if len(set(names)) != len(names) or sum(each.is_plain for each in self.settings) != 1:
            raise ValueError("settings need different names and exactly one without speculation")
        if unknown := {*(each.setting for each in self.points), *(each.setting for each in self.firsts)} - set(names):
            raise ValueError(f"points of unknown settings: {', '.join(sorted(unknown))}")
        if not all(each.step_ms > 0 and each.batch > 0 and each.low <= each.high for each in self.points):
            raise ValueError("a point needs a positive time and batch, and an interval whose ends are in order")
        if any(
            not 0 <= tokens < _MOST_TOKENS
            for each in self.points
            for tokens in (each.batch, each.context, each.prefill_tokens)
        ):
            raise ValueError(f"a point has a batch, context or prompt that is negative or above {_MOST_TOKENS:.0e}")

    @property
    def plain(self) -> CalibratedSetting:
        """The setting without speculation."""
        return next(each for each in self.settings if each.is_plain)

    @property
    def candidates(self) -> tuple[CalibratedSetting, ...]:
        """The settings that speculate."""
        return tuple(each for each in self.settings if not each.is_plain)

    def points_of(self, setting: str) -> tuple[StepPoint, ...]:
        """Return the points of one setting, smallest batch first."""
        return tuple(sorted((p for p in self.points if p.setting == setting), key=lambda point: point.batch))
