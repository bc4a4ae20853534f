"""Advice on one method: its rank in the guides, expected acceptance, cost and published results.

All of it is optional: a method without advice is still checked, sized and run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Overlap = Literal["none", "some", "high"]

_LAST_RANK = 100
"""Rank of a method that the guides do not name: after all that they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePrior:
    """The acceptance to expect from a method before any measurement."""

    low: float
    high: float
    """Probability that a draft token is accepted, given that those before it were."""
    source: str
    overlap: Overlap | None = None
    """Overlap of the traffic that it is for; None for any other traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAcceptance:
    """Measured tokens per step on a kind of traffic."""

    traffic: str
    length: float
    """Tokens per step; per verified draft if every step has a draft."""
    k: int
    conditions: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """A published result and how it was measured."""

    result: str
    conditions: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingCost:
    """The cost of drafting per step, apart from reading the drafter's weights: kernel launches and host work."""

    per_token_s: float
    per_step_s: float
    runner: str
    """Model runner on which it was measured."""
    measured: bool = True
    """Whether it was measured with this method, rather than assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodAdvice:
    """The column `advice` of a method's row."""

    rank: int = _LAST_RANK
    """Place in the guides' order of methods, from 0; methods may share one."""
    rank_without_repetition: int | None = None
    """Likewise for traffic whose answers do not repeat earlier ones; None if that changes nothing."""
    only_if_deployed: bool = False
    """Whether the guides recommend it only if it is already deployed."""
    successor: str | None = None
    """Method that does better if both have a drafter; None without one."""
    cost: DraftingCost | None = None
    """None if not measured; `knowledge.advice.find_drafting_cost` then uses that of a similar method."""
    priors: tuple[AcceptancePrior, ...] = ()
    seen_acceptance: tuple[SeenAcceptance, ...] = ()
    published_results: tuple[PublishedResult, ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> MethodAdvice:
        """Return the advice of a row's column.

        Raises:
            ValueError: a field is unknown, missing or of a wrong kind.
        """
        try:
            return cls(**{**row, **{name: read(row[name]) for name, read in _READERS.items() if name in row}})
        except (TypeError, AttributeError) as fault:
            raise ValueError(f"advice: {fault}") from fault

    def find_prior(self, overlap: Overlap | None = None) -> AcceptancePrior | None:
        """Return the acceptance to expect on such traffic; None if unknown."""
        return next((prior for prior in self.priors if prior.overlap in (None, overlap)), None)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "cost": lambda row: DraftingCost(**row),
    "priors": lambda rows: tuple(AcceptancePrior(**row) for row in rows),
    "seen_acceptance": lambda rows: tuple(SeenAcceptance(**row) for row in rows),
    "published_results": lambda rows: tuple(PublishedResult(**row) for row in rows),
}

NO_ADVICE = MethodAdvice()
"""Advice of a method about which nothing is known."""
