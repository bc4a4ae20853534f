"""The acceptance that a method needs at the operator's load, the one to expect, and how many tokens to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.facts.advice import AcceptancePrior, find_prior
from draftwise.plan.forecast.schedule import Range, join_ranges
from draftwise.plan.forecast.step_cost import Drafting, choose_best_k, compute_acceptance_length
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal

__all__ = ["Estimate", "choose_k", "choose_schedule", "estimate"]

_CLOSE_ENOUGH = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected acceptance against break-even, for one k and one load."""

    k: int
    sequences: int
    prior: AcceptancePrior
    acceptance: float
    """Expected probability that a draft token is accepted, given that those before it were: a point of the prior."""
    break_even: float | None
    """Tokens per step and sequence at which drafting is as fast as the baseline; None if it cannot be estimated."""
    baseline_s: float | None
    """Seconds of a step without drafting: the baseline's time per output token."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token at the expected acceptance; None where nothing is estimated."""
        if self.baseline_s is None or self.break_even is None:
            return None
        return self.baseline_s * self.break_even / self.expected_length

    @property
    def expected_length(self) -> float:
        """Tokens per step at the expected acceptance."""
        return compute_acceptance_length(self.acceptance, self.k)

    @property
    def length_prior(self) -> tuple[float, float]:
        """Tokens per step at both ends of the prior."""
        return compute_acceptance_length(self.prior.low, self.k), compute_acceptance_length(self.prior.high, self.k)

    @property
    def needed_acceptance(self) -> float | None:
        """Acceptance that reaches break-even; None if none does, or if nothing is estimated."""
        if self.break_even is None or self.break_even > self.k + 1:
            return None
        low, high = 0.0, 1.0
        while high - low > _CLOSE_ENOUGH:
            middle = (low + high) / 2
            low, high = (
                (low, middle) if compute_acceptance_length(middle, self.k) >= self.break_even else (middle, high)
            )
        return high

    @property
    def gain(self) -> float | None:
        """Expected speed-up of decoding at this load; None if nothing is estimated."""
        return None if self.break_even is None else self.expected_length / self.break_even


def estimate(case: Case, method: str, drafting: Drafting, k: int, sequences: int | None = None) -> Estimate | None:
    """Return the estimate for a method; None for one without a prior."""
    prior = find_prior(method)
    if prior is None:
        return None
    batch = case.batch(sequences)
    return Estimate(
        k=k,
        sequences=batch.sequences,
        prior=prior,
        acceptance=_expect_acceptance(case, prior),
        break_even=None if case.machine is None else case.machine.break_even(batch, drafting, k),
        baseline_s=None if case.machine is None else case.machine.baseline_s(batch),
    )


def choose_k(case: Case, proposal: Proposal, drafting: Drafting) -> int:
    """Return the k that emits most tokens per second at the median load; the smallest allowed if nothing is known.

    It is chosen for the low end of the method's prior: a k that is too large costs more than one that is too small.
    """
    prior = find_prior(proposal.method)
    if case.machine is None or prior is None:
        return min(proposal.lengths)
    lengths = _within_graphs(case, proposal.lengths, case.requirements.traffic.concurrency)
    return choose_best_k(case.machine, case.batch(), drafting, prior.low, lengths)


def choose_schedule(case: Case, proposal: Proposal, drafting: Drafting) -> tuple[Range, ...]:
    """Return ranges (first batch size, last, k) with the k that emits most, 0 where the baseline is faster.

    Batch sizes go up to the traffic's peak. Empty if one k is best for all of them, or if nothing can be estimated.
    """
    prior = find_prior(proposal.method)
    if case.machine is None or prior is None:
        return ()
    machine, acceptance = case.machine, prior.low

    def best(sequences: int) -> int:
        batch = case.batch(sequences)
        k = choose_best_k(machine, batch, drafting, acceptance, _within_graphs(case, proposal.lengths, sequences))
        return k if compute_acceptance_length(acceptance, k) > machine.break_even(batch, drafting, k) else 0

    peak = case.requirements.traffic.peak_concurrency
    ends = sorted({min(peak, 2**power) for power in range(peak.bit_length() + 1)})
    rows = join_ranges((end, best(end)) for end in ends)
    return rows if len({k for _, _, k in rows}) > 1 else ()


def _within_graphs(case: Case, lengths: Sequence[int], sequences: int) -> Sequence[int]:
    """Return the k whose steps fit a captured graph, else the smallest: the estimate has no term for eager steps."""
    reach = case.release.table("cudagraph_sizes").get("cap")
    if not isinstance(reach, int):
        return lengths
    return [k for k in lengths if sequences * (k + 1) <= reach] or [min(lengths)]


def _expect_acceptance(case: Case, prior: AcceptancePrior) -> float:
    return prior.low + case.requirements.traffic.place * (prior.high - prior.low)
