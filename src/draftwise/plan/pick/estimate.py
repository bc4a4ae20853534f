"""What a method's acceptance must be at the operator's load, what it is likely to be, and how many tokens to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.facts.advice import Band, find_band
from draftwise.plan.forecast.schedule import Range, join_ranges
from draftwise.plan.forecast.step_cost import Drafting, acceptance_length, best_k
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal

__all__ = ["Estimate", "choose_k", "estimate", "schedule"]

_CLOSE_ENOUGH = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Priors beside the break-even, for one k and one load."""

    k: int
    sequences: int
    band: Band
    chance: float
    """Expected of the operator's traffic: a place in the band."""
    break_even: float | None
    """Tokens a step and sequence that make drafting as fast as plain decoding; None where nothing can be estimated."""

    plain_s: float | None
    """Seconds of a plain step: the time per output token without drafting."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token at the expected acceptance; None where nothing is estimated."""
        if self.plain_s is None or self.break_even is None:
            return None
        return self.plain_s * self.break_even / self.expected_length

    @property
    def expected_length(self) -> float:
        """Tokens a step at the expected chance."""
        return acceptance_length(self.chance, self.k)

    @property
    def length_band(self) -> tuple[float, float]:
        """Tokens a step at both ends of the band."""
        return acceptance_length(self.band.low, self.k), acceptance_length(self.band.high, self.k)

    @property
    def needed_chance(self) -> float | None:
        """Chance of acceptance that reaches break-even; None where none does, or nothing is estimated."""
        if self.break_even is None or self.break_even > self.k + 1:
            return None
        low, high = 0.0, 1.0
        while high - low > _CLOSE_ENOUGH:
            middle = (low + high) / 2
            low, high = (low, middle) if acceptance_length(middle, self.k) >= self.break_even else (middle, high)
        return high

    @property
    def gain(self) -> float | None:
        """Expected speed-up of decoding at this load; None where nothing is estimated."""
        return None if self.break_even is None else self.expected_length / self.break_even


def estimate(case: Case, method: str, drafting: Drafting, k: int, sequences: int | None = None) -> Estimate | None:
    """Return the estimate for a method; None for one without a band."""
    band = find_band(method)
    if band is None:
        return None
    batch = case.batch(sequences)
    return Estimate(
        k=k,
        sequences=batch.sequences,
        band=band,
        chance=_chance(case, band),
        break_even=None if case.machine is None else case.machine.break_even(batch, drafting, k),
        plain_s=None if case.machine is None else case.machine.plain_s(batch),
    )


def choose_k(case: Case, proposal: Proposal, drafting: Drafting) -> int:
    """Return the k that emits most tokens a second at the median load; the smallest allowed where nothing is known.

    It is chosen for the low end of the method's band: a k that is too large costs more than one that is too small.
    """
    band = find_band(proposal.method)
    if case.machine is None or band is None:
        return min(proposal.lengths)
    lengths = _within_graphs(case, proposal.lengths, case.wish.traffic.concurrency)
    return best_k(case.machine, case.batch(), drafting, band.low, lengths)


def schedule(case: Case, proposal: Proposal, drafting: Drafting) -> tuple[Range, ...]:
    """Return ranges (first batch size, last, k) with the k that emits most, 0 where plain decoding is faster.

    Batch sizes go up to the traffic's peak. Empty where one k serves them all, or nothing can be estimated.
    """
    band = find_band(proposal.method)
    if case.machine is None or band is None:
        return ()
    machine, chance = case.machine, band.low

    def best(sequences: int) -> int:
        batch = case.batch(sequences)
        k = best_k(machine, batch, drafting, chance, _within_graphs(case, proposal.lengths, sequences))
        return k if acceptance_length(chance, k) > machine.break_even(batch, drafting, k) else 0

    peak = case.wish.traffic.peak_concurrency
    ends = sorted({min(peak, 2**power) for power in range(peak.bit_length() + 1)})
    rows = join_ranges((end, best(end)) for end in ends)
    return rows if len({k for _, _, k in rows}) > 1 else ()


def _within_graphs(case: Case, lengths: Sequence[int], sequences: int) -> Sequence[int]:
    """Return the k whose steps a captured graph holds, else the smallest: the estimate knows no cliff."""
    reach = case.release.table("cudagraph_sizes").get("cap")
    if not isinstance(reach, int):
        return lengths
    return [k for k in lengths if sequences * (k + 1) <= reach] or [min(lengths)]


def _chance(case: Case, band: Band) -> float:
    return band.low + case.wish.traffic.place * (band.high - band.low)
