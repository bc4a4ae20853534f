"""The acceptance to expect of a method on an operator's traffic: what was measured on such traffic, else a prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from draftwise.knowledge.advice import read_temperature_effect, read_traffic_kinds
from draftwise.knowledge.method_advice import AcceptancePrior, SeenAcceptance
from draftwise.knowledge.methods import get_method
from draftwise.plan.forecast.acceptance import find_acceptance
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal

__all__ = ["Expectation", "expect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Probability that a draft token is accepted, given that those before it were."""

    low: float
    high: float
    expected: float
    cautious: float
    """From which the draft length is chosen: one that is too large costs more than one that is too small."""
    factor: float = 1.0
    """What the traffic's temperature has taken off: the other numbers have it in them."""
    source: str


def expect(case: Case, proposal: Proposal) -> Expectation | None:
    """Return what to expect of a proposal at the traffic's temperature; None for a method without a prior.

    Nothing is expected that is higher than what was measured: of this kind of traffic, else of any. A drafter that was
    trained for one kind is not expected to do better on another.
    """
    traffic, advice = case.requirements.traffic, get_method(proposal.method).advice
    prior, seen = advice.find_prior(traffic.overlap), advice.seen_acceptance
    if prior is None:
        return None
    found = [_of_kind(prior, seen, traffic.kind, traffic.place)]
    if proposal.trained_on is not None:
        trained = read_traffic_kinds()[proposal.trained_on]
        found.append(_of_kind(prior, seen, trained.name, trained.place))
    least = min(found, key=lambda each: each.expected)
    return _heat(least, read_temperature_effect().factor(traffic.temperature))


def _of_kind(prior: AcceptancePrior, seen: tuple[SeenAcceptance, ...], kind: str | None, place: float) -> Expectation:
    same = [row for row in seen if row.traffic == kind]
    return _of_measurements(prior, same) if same else _of_prior(prior, seen, place)


def _of_measurements(prior: AcceptancePrior, rows: list[SeenAcceptance]) -> Expectation:
    chances = [_chance(row) for row in rows]
    expected = median(chances)
    return Expectation(
        low=min(chances),
        high=max(chances),
        expected=expected,
        cautious=min(expected, prior.low),
        source="; ".join(f"{row.length:g} tokens a step at k={row.k}: {row.conditions} ({row.source})" for row in rows),
    )


def _of_prior(prior: AcceptancePrior, seen: tuple[SeenAcceptance, ...], place: float) -> Expectation:
    most = max(map(_chance, seen), default=1.0)
    expected = min(most, prior.low + place * (prior.high - prior.low))
    return Expectation(
        low=min(prior.low, expected),
        high=min(prior.high, most),
        expected=expected,
        cautious=min(prior.low, expected),
        source=prior.source,
    )


def _chance(row: SeenAcceptance) -> float:
    return find_acceptance(row.length, row.k)


def _heat(found: Expectation, factor: float) -> Expectation:
    numbers = {name: factor * getattr(found, name) for name in ("low", "high", "expected", "cautious")}
    return replace(found, factor=factor, **numbers)
