"""What an operator requires of a pick: target, hardware, release and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from draftwise.core import Calibration, InvalidSetup
from draftwise.knowledge.advice import TrafficKind, read_traffic_kinds
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.method_advice import Overlap

__all__ = ["STRUCTURED_OUTPUT", "Requirements", "Traffic", "describe_traffic"]

STRUCTURED_OUTPUT = "structured_outputs"
"""Name under which `Traffic.parameters` says that requests ask for JSON, a grammar or tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What requests look like."""

    kind: str | None = None
    overlap: Overlap
    """How much of the output repeats the prompt."""
    place: float
    """Where in a method's acceptance prior this traffic is expected: 0 at the low end, 1 at the high end."""
    repetitive: bool = False
    """Whether answers repeat earlier answers."""
    temperature: float = 0.0
    """The median over requests."""
    mixed_temperatures: bool = False
    concurrency: int = 1
    """Requests that decode together, the median."""
    peak_concurrency: int
    prompt_tokens: int = 1024
    output_tokens: int = 256
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    parameters: frozenset[str] = frozenset()
    """Sampling parameters that requests use besides temperature, top_p and top_k."""

    @property
    def context(self) -> int:
        """Context length of a sequence halfway through its answer."""
        return self.prompt_tokens + self.output_tokens // 2


def describe_traffic(
    kind: str | None = None, *, overlap: Overlap | None = None, peak_concurrency: int | None = None, **known: Any
) -> Traffic:
    """Return traffic of a named kind, in which known values replace those of the kind.

    Args:
        kind: a name from the table of kinds; None for traffic of which only `overlap` is known.
        overlap: as observed; the kind's by default. Where nothing is known, `some`, at the low end of every prior.
        peak_concurrency: the median by default.
        known: further fields of `Traffic`.

    Raises:
        InvalidSetup: there is no such kind.
    """
    row = _get_kind(kind) if kind is not None else None
    place = row.place if row else _PLACE_BY_OVERLAP[overlap] if overlap else 0.0
    overlap = overlap or (row.overlap if row else "some")
    return Traffic(
        kind=kind,
        overlap=overlap,
        place=place,
        repetitive=row.repetitive if row else overlap == "high",
        peak_concurrency=max(peak_concurrency or 0, known.get("concurrency", 1)),
        **known,
    )


_PLACE_BY_OVERLAP: Mapping[Overlap, float] = {"none": 0.0, "some": 0.5, "high": 1.0}


def _get_kind(name: str) -> TrafficKind:
    found = read_traffic_kinds().get(name)
    if found is None:
        raise InvalidSetup.because(
            "unknown-traffic",
            f"{name!r} is not a known kind of traffic.",
            where="--workload",
            fix=f"Give one of {', '.join(read_traffic_kinds())}, or give --overlap instead.",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The deployment that a method is picked for."""

    target: str
    """A directory with config.json, a well-known model id, or the JSON itself."""
    gpu: Gpu
    gpus: int = 1
    version: str = "newest"
    """Release of vLLM."""
    traffic: Traffic
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags of the deployment, by their long name with underscores."""
    drafters: tuple[str, ...] = ()
    """Drafters that the operator has: directories, or names of models."""
    air_gapped: bool = False
    """Whether the server cannot fetch anything."""
    can_train: bool = False
    calibration: Calibration | None = None
    """How long steps last on the deployment's machine; None estimates that from the GPU's data sheet."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
