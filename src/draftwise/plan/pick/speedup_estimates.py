"""The acceptance that a method needs at your load, the acceptance to expect, and how many tokens to draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, log2
from statistics import median

from draftwise.core import Finding
from draftwise.knowledge.advice import (
    SeenSpeedup,
    find_drafting_cost,
    find_seen_speedups,
    get_advice,
    give_advice,
    read_temperature_effect,
    read_traffic_kinds,
)
from draftwise.knowledge.method_advice import AcceptancePrior, SeenAcceptance
from draftwise.knowledge.methods import get_method
from draftwise.plan.cost.machine import Drafting, Machine
from draftwise.plan.forecast.calibrated_server import choose_best_k, compute_acceptance_length, find_acceptance
from draftwise.plan.pick.proposals import Proposal
from draftwise.plan.pick.requirements import PickCase
from draftwise.plan.schedule.draft_lengths import Range, choose_lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAcceptance:
    """Probability that a draft token is accepted, given that those before it were."""

    low: float
    high: float
    expected: float
    cautious: float
    """Acceptance for choosing the draft length: too large a length costs more than too small a one."""
    factor: float = 1.0
    """Factor for the traffic's temperature, already applied to the other numbers."""
    source: str


def expect(case: PickCase, proposal: Proposal) -> ExpectedAcceptance | None:
    """Return what to expect of a proposal at the traffic's temperature; None for a method without a prior.

    The expectation never exceeds measured acceptance, on this kind of traffic or else on any. A drafter trained for one
    kind is not expected to do better on another.
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
    heat = read_temperature_effect().factor(traffic.temperature)
    return replace(_scale(least, heat * find_context_factor(case, proposal)), factor=heat)


def find_context_factor(case: PickCase, proposal: Proposal) -> float:
    """Return the factor on acceptance at the traffic's context length, relative to a short one.

    A lookup finds as much in a long text as in a short one.
    """
    facts, numbers = get_method(proposal.method), get_advice("long-context").numbers
    if not facts.has_weights:
        return 1.0
    beyond = max(0.0, log2(case.requirements.traffic.context / numbers["reach"]))
    return float(
        numbers["head" if facts.weights == "drafter" and facts.drafts_from != "own_model" else "module"] ** beyond
    )


def _of_kind(
    prior: AcceptancePrior, seen: tuple[SeenAcceptance, ...], kind: str | None, place: float
) -> ExpectedAcceptance:
    same = [row for row in seen if row.traffic == kind]
    return _of_measurements(prior, seen, same, place) if same else _of_prior(prior, seen, place)


def _of_measurements(
    prior: AcceptancePrior, seen: tuple[SeenAcceptance, ...], rows: list[SeenAcceptance], place: float
) -> ExpectedAcceptance:
    """Return what readings of this kind of traffic say. A single one is as much as the prior, and leaves its width."""
    chances = [_chance(row) for row in rows]
    expected, low, high = median(chances), min(chances), max(chances)
    if len(rows) == 1:
        rough = _of_prior(prior, seen, place)
        expected, low, high = (expected + rough.expected) / 2, min(low, rough.low), max(high, rough.high)
    return ExpectedAcceptance(
        low=low,
        high=high,
        expected=expected,
        cautious=min(expected, prior.low),
        source="; ".join(f"{row.length:g} tokens a step at k={row.k}: {row.conditions} ({row.source})" for row in rows),
    )


def _of_prior(prior: AcceptancePrior, seen: tuple[SeenAcceptance, ...], place: float) -> ExpectedAcceptance:
    most = max(map(_chance, seen), default=1.0)
    expected = min(most, prior.low + place * (prior.high - prior.low))
    return ExpectedAcceptance(
        low=min(prior.low, expected),
        high=min(prior.high, most),
        expected=expected,
        cautious=min(prior.low, expected),
        source=prior.source,
    )


def _chance(row: SeenAcceptance) -> float:
    return find_acceptance(row.length, row.k)


def _scale(found: ExpectedAcceptance, factor: float) -> ExpectedAcceptance:
    return replace(found, **{name: factor * getattr(found, name) for name in ("low", "high", "expected", "cautious")})


_PRIOR_WIDTH = 1.15
"""Factor up and down that a single reading leaves open: what two runs of the same pair differed by at most loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Measured or published results of a target and a method that replace the estimate or limit it."""

    expected: float
    low: float
    high: float
    reason: Finding

    @classmethod
    def at_most(cls, most: float, span: tuple[float, float], reason: Finding) -> PairEvidence:
        """Return the bound for an estimate whose readings stay below `most` at every load."""
        high = min(span[1], most * _PRIOR_WIDTH)
        return cls(expected=most, low=min(span[0], most / _PRIOR_WIDTH), high=max(most, high), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupEstimate:
    """Expected acceptance compared with break-even, for one k and one load."""

    k: int
    sequences: int
    expectation: ExpectedAcceptance
    break_even: float | None
    """Tokens per step and sequence at which drafting is as fast as the baseline; None if it cannot be estimated."""
    baseline_s: float | None
    """Seconds of a step without drafting: the baseline's time per output token."""
    bound: PairEvidence | None = None
    """Result of the pair that replaces the estimate; None without one, or if it is no limit."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token at the expected acceptance; None if nothing is estimated."""
        if self.baseline_s is None or self.gain is None:
            return None
        return self.baseline_s / self.gain

    @property
    def expected_length(self) -> float:
        """Tokens per step at the expected acceptance."""
        return compute_acceptance_length(self.expectation.expected, self.k)

    @property
    def length_range(self) -> tuple[float, float]:
        """Tokens per step at both ends of the expected acceptance."""
        low, high = self.expectation.low, self.expectation.high
        return compute_acceptance_length(low, self.k), compute_acceptance_length(high, self.k)

    @property
    def needed_acceptance(self) -> float | None:
        """Acceptance that reaches break-even; None if no acceptance does, or if nothing is estimated."""
        if self.break_even is None or self.break_even > self.k + 1:
            return None
        return find_acceptance(self.break_even, self.k)

    @property
    def modelled(self) -> float | None:
        """Speed-up from acceptance and costs, regardless of measurements; None if nothing is estimated."""
        return None if self.break_even is None else self.expected_length / self.break_even

    @property
    def gain(self) -> float | None:
        """Expected speed-up of decoding at this load; None if nothing is estimated."""
        return self.modelled if self.bound is None else self.bound.expected

    @property
    def gain_range(self) -> tuple[float, float] | None:
        """Speed-up at both ends of the expected acceptance; None if nothing is estimated."""
        if self.bound is not None:
            return self.bound.low, self.bound.high
        if self.break_even is None:
            return None
        low, high = self.length_range
        return low / self.break_even, high / self.break_even


def estimate(case: PickCase, proposal: Proposal, drafting: Drafting, k: int) -> SpeedupEstimate | None:
    """Return the estimate at the median load; None for a method without a prior."""
    expectation = expect(case, proposal)
    if expectation is None:
        return None
    batch, machine = case.batch(), _find_machine(case, drafting)
    made = SpeedupEstimate(
        k=k,
        sequences=case.requirements.traffic.concurrency,
        expectation=expectation,
        break_even=None if machine is None else machine.break_even(batch, drafting, k),
        baseline_s=None if case.machine is None else case.machine.baseline_s(batch),
    )
    return replace(made, bound=_bind(case, proposal, drafting, made))


def _bind(case: PickCase, proposal: Proposal, drafting: Drafting, made: SpeedupEstimate) -> PairEvidence | None:
    """Return what readings of this very pair make of an estimate.

    Readings taken here on the same GPUs stand for it. All others are the most that is expected: those of the same GPU
    where there are any. A reading of fewer GPUs is one too, since sharing layers adds waiting. Without
    an estimate, what lost on these very GPUs is expected to lose.
    """
    requirements, kind = case.requirements, case.requirements.traffic.kind
    rows = [row for row in find_seen_speedups(case.names, proposal.method) if row.traffic in (None, kind)]
    here = [row for row in rows if row.gpu == requirements.gpu.name]
    ours = [row for row in here if row.ours]
    same = [row for row in ours if row.gpus == case.tensor_parallel_size]
    if same and made.gain is not None:
        return _measured(case, proposal, drafting, made, _nearest_k(same, made.k))
    limits = _nearest_k([row for row in ours if (row.gpus or 1) < case.tensor_parallel_size], made.k)
    limits += [row for row in here if not row.ours] or [row for row in rows if not row.ours and row.gpu is None]
    if made.gain is None:
        limits = [row for row in here if row.gpus == case.tensor_parallel_size and row.at(made.sequences) < 1]
    found = [(row.at(made.sequences), row) for row in limits]
    if not found:
        return None
    most, row = min(found, key=lambda each: each[0]) if ours else max(found, key=lambda each: each[0])
    if made.gain is not None and made.gain <= most:
        return None
    reason = give_advice("pair-published", most=most, conditions=row.conditions)
    return PairEvidence.at_most(most, made.gain_range or (most, most), replace(reason, source=row.source))


def _measured(
    case: PickCase, proposal: Proposal, drafting: Drafting, made: SpeedupEstimate, rows: list[SeenSpeedup]
) -> PairEvidence:
    """Return the middle and the span of readings at a load, with the decline that the estimate has beyond them.

    On predictable traffic more is accepted than was simulated: there the readings tell the break-even only.
    """
    readings = [row.at(made.sequences) for row in rows]
    if case.requirements.traffic.place >= _PREDICTABLE:
        chance = made.expectation.expected
        readings = [
            reading * compute_acceptance_length(chance, row.k or made.k) / row.tokens_per_step
            if row.tokens_per_step
            else reading
            for reading, row in zip(readings, rows, strict=True)
        ]
    decline = 1.0 if case.requirements.traffic.place >= _PREDICTABLE else _decline(case, proposal, drafting, made, rows)
    low, high = min(readings) * decline * decline, max(readings) * decline  # the decline is as unsure as it is large
    if len(rows) == 1:
        low, high = low / _PRIOR_WIDTH, high * _PRIOR_WIDTH
    shown = {"low": low, "high": high, "conditions": "; ".join(row.conditions for row in rows)}
    reason = give_advice("pair-measured", sequences=made.sequences, **shown)
    source = "; ".join(dict.fromkeys(row.source for row in rows))
    return PairEvidence(expected=_middle(readings) * decline, low=low, high=high, reason=replace(reason, source=source))


_PREDICTABLE = 0.5
"""Place of a kind of traffic in a method's acceptance prior from which simulated acceptance is below it."""


def _decline(
    case: PickCase, proposal: Proposal, drafting: Drafting, made: SpeedupEstimate, rows: list[SeenSpeedup]
) -> float:
    """Return the estimate relative to the one for the readings' own context and temperature. At most 1."""
    machine = _find_machine(case, drafting)
    if machine is None or made.gain is None:
        return 1.0
    context = min(case.requirements.traffic.context, max(row.context for row in rows))
    batch = replace(case.batch(), context=context)
    factor = made.expectation.factor * find_context_factor(case, proposal)
    plain = compute_acceptance_length(made.expectation.expected / factor, made.k)
    return min(1.0, made.gain * machine.break_even(batch, drafting, made.k) / plain)


def _nearest_k(rows: list[SeenSpeedup], k: int) -> list[SeenSpeedup]:
    """Return the readings whose k is nearest to the one that is recommended."""
    least = min((abs((row.k or k) - k) for row in rows), default=0)
    return [row for row in rows if abs((row.k or k) - k) == least]


def _middle(values: list[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def choose_k(case: PickCase, proposal: Proposal, drafting: Drafting) -> int:
    """Return the k with the most tokens per second at the median load; the smallest allowed if nothing is known.

    It is never larger than at a lower load: k falls with load and with temperature.
    """
    ranges = _choose_lengths(case, proposal, drafting, case.requirements.traffic.concurrency)
    return ranges[-1][1] if ranges else min(proposal.lengths)


def choose_schedule(case: PickCase, proposal: Proposal, drafting: Drafting) -> tuple[Range, ...]:
    """Return ranges (first batch size, last, k) up to the traffic's peak, 0 where drafting nothing is faster.

    Empty if nothing can be estimated, or if the gain over the best fixed k is too small.
    """
    chosen = _choose_lengths(case, proposal, drafting, case.requirements.traffic.peak_concurrency)
    expectation, machine = expect(case, proposal), _find_machine(case, drafting)
    if not chosen or machine is None or expectation is None:
        return ()
    acceptance = expectation.cautious

    def speed_up(sequences: int, k: int) -> float:
        length, batch = compute_acceptance_length(acceptance, k), case.batch(sequences)
        drafted = machine.drafting_s(batch, drafting, k) if k else machine.idle_s(batch, drafting)
        return length * machine.baseline_s(batch) / drafted

    found = choose_lengths([sequences for sequences, _ in chosen], [0, *{k for _, k in chosen}], speed_up)
    return found.ranges if found.is_schedule_worth_it else ()


def _choose_lengths(case: PickCase, proposal: Proposal, drafting: Drafting, most: int) -> list[tuple[int, int]]:
    """Return the best k for 1, 2, 4 ... sequences up to a number, each at most the one before.

    Empty if nothing can be estimated. In a mixture of experts more rows choose the same experts the more there are, so
    that a larger k can look better at a higher load; that gain is not worth two settings.
    """
    expectation, machine = expect(case, proposal), _find_machine(case, drafting)
    if machine is None or expectation is None:
        return []
    chosen: list[tuple[int, int]] = []
    for sequences in sorted({min(most, 2**power) for power in range(most.bit_length() + 1)}):
        allowed = [k for k in proposal.lengths if not chosen or k <= chosen[-1][1]]
        lengths = _within_graphs(case, allowed, sequences)
        k = choose_best_k(machine, case.batch(sequences), drafting, expectation.cautious, lengths)
        chosen.append((sequences, k))
    return chosen


def _find_machine(case: PickCase, drafting: Drafting) -> Machine | None:
    """Return the machine on which steps are estimated. None where it, or what the method costs, is unknown."""
    weighs = drafting.work is not None or not get_method(drafting.method).has_weights
    return case.machine if weighs and find_drafting_cost(drafting.method) is not None else None


def _within_graphs(case: PickCase, lengths: Sequence[int], sequences: int) -> Sequence[int]:
    """Return the k whose steps fit a captured graph, else the smallest: the estimate has no term for eager steps."""
    reach = case.release.table("cudagraph_sizes").get("cap")
    if not isinstance(reach, int):
        return lengths
    return [k for k in lengths if sequences * (k + 1) <= reach] or [min(lengths)]
