"""The whole answer: reasons against speculation, candidates in order, and every other method with its refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftwise.core import Severity
from draftwise.knowledge.advice import get_advice
from draftwise.plan.pick.case import Case, open_case
from draftwise.plan.pick.judge import Candidate, judge
from draftwise.plan.pick.levers import Lever, Weight, find_levers
from draftwise.plan.pick.memory import open_memory
from draftwise.plan.pick.methods import list_methods, propose
from draftwise.plan.pick.proposal import Refusal
from draftwise.plan.pick.requirements import Requirements

__all__ = ["Advice", "pick"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Where to start, for one release. Every method of the release is in `ranked` or in `refused`, once."""

    requirements: Requirements
    version: str
    levers: tuple[Lever, ...]
    """Reasons against speculation, the heaviest first."""
    ranked: tuple[Candidate, ...]
    """Each is accepted by the release and fits into memory."""
    refused: tuple[Refusal, ...]

    @property
    def is_against(self) -> bool:
        """Whether something speaks against speculation so strongly that no method is recommended."""
        return any(lever.weight is not Weight.DOUBT for lever in self.levers)

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        heavy = [lever for lever in self.levers if lever.weight is not Weight.DOUBT]
        if heavy:
            return f"Leave speculation off. {heavy[0].finding.message}"
        if not self.ranked:
            return f"No method can be recommended for this target on vLLM {self.version}: each is refused below."
        if self.levers:
            doubt = self.levers[0].finding.message
            return f"Probably leave it off: {doubt} {_start(self.ranked[0], 'If you try it, start')}"
        return _start(self.ranked[0], "Start")


def pick(requirements: Requirements) -> Advice:
    """Return where to start.

    Raises:
        InvalidSetup: the target or a drafter is not found, or the release is unknown.
    """
    case = open_case(requirements)
    memory = open_memory(case)
    levers = (*find_levers(case), *memory.levers)
    ending = next((lever for lever in levers if lever.weight is Weight.ENDS), None)
    ranked: list[Candidate] = []
    refused: list[Refusal] = []
    for method in list_methods(case):
        proposal = propose(case, method) if ending is None else Refusal(method=method, reasons=(ending.finding,))
        outcome = proposal if isinstance(proposal, Refusal) else judge(case, proposal, memory)
        if isinstance(outcome, Refusal):
            refused.append(outcome)
        else:
            ranked.append(outcome)
    ordered = _order(ranked)
    if ordered and not any(candidate.pays for candidate in ordered):
        levers = (*levers, _nothing_pays(case))
    return Advice(
        requirements=requirements,
        version=str(case.release),
        levers=tuple(sorted(levers, key=lambda lever: list(Weight).index(lever.weight))),
        ranked=ordered,
        refused=tuple(refused),
    )


def _order(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates by estimated speed-up: drafters at hand first, what is not expected to pay last.

    Where nothing can be estimated the guides' order stands.
    """
    ordered = sorted(candidates, key=lambda each: (not each.pays, not each.at_hand, -_gain(each), each.place))
    return tuple(_explain_place(each, ordered[place + 1 :]) for place, each in enumerate(ordered))


def _gain(candidate: Candidate) -> float:
    """Return the speed-up as it is shown: candidates that look equal are in the guides' order."""
    gain = None if candidate.estimate is None else candidate.estimate.gain
    return 1.0 if gain is None else round(gain, 2)


def _explain_place(candidate: Candidate, after: Sequence[Candidate]) -> Candidate:
    """Add the reason why a candidate ranks before one that the guides try earlier."""
    passed = [each for each in after if each.pays and each.place < candidate.place]
    if not passed or not candidate.pays:
        return candidate
    reason = get_advice("against-the-guide").finding(
        f"It ranks before {passed[0].method}: estimated speed-ups are {_gain(candidate):.2f} and "
        f"{_gain(passed[0]):.2f}."
    )
    return replace(candidate, reasons=(*candidate.reasons, reason))


def _nothing_pays(case: Case) -> Lever:
    sequences = case.requirements.traffic.concurrency
    return Lever(
        weight=Weight.DOUBT,
        finding=get_advice("nothing-pays").finding(
            f"At {sequences} sequences no method is expected to reach its break-even acceptance.",
            severity=Severity.WARNING,
        ),
    )


def _start(candidate: Candidate, opening: str) -> str:
    spec = candidate.setup.spec
    model = f"{spec.model}, " if spec is not None and spec.model else ""
    k = f"k={spec.num_speculative_tokens}" if spec is not None else ""
    return f"{opening} with {candidate.method} ({model}{k}), and measure it."
