"""Turns a method's proposal into a candidate that the release accepts and that fits into memory, or into a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwise.checkpoints.pair import inspect_pair
from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.method_advice import PublishedResult
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import PublishedDrafter
from draftwise.plan.check import Report, Resolved, check
from draftwise.plan.cost.machine import Drafting
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.caveats import find_caveats
from draftwise.plan.pick.estimate import Estimate, choose_k, choose_schedule, estimate
from draftwise.plan.pick.memory import Memory
from draftwise.plan.pick.proposal import Proposal, Refusal
from draftwise.plan.pick.stops import find_stops
from draftwise.plan.schedule.judge import judge_schedule
from draftwise.plan.schedule.ranges import KEY, make_schedule_keys
from draftwise.plan.size import Sizing

__all__ = ["Candidate", "judge"]

_FEW_SEQUENCES = 64
"""Least `max_num_seqs` to fall back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A method to try, with the config to paste and what is known about it."""

    method: str
    setup: Setup
    report: Report
    """What `check` says: the release accepts the setup, and the server starts."""
    sizing: Sizing | None
    """Memory of each GPU; None where the target's size cannot be computed."""
    estimate: Estimate | None
    scheduled: Mapping[str, Any] | None
    """The config with k by batch size, for varying load; None if one k is best, or the release has no such key."""
    place: int
    """Position in the guides' order of methods: the smallest is tried first."""
    at_hand: bool
    """Whether the operator gave its drafter."""
    reasons: tuple[Finding, ...]
    caveats: tuple[Finding, ...]
    alternatives: tuple[PublishedDrafter, ...]
    published_results: tuple[PublishedResult, ...]

    @property
    def pays(self) -> bool:
        """Whether its expected acceptance reaches break-even, as far as that can be estimated."""
        return self.estimate is None or self.estimate.gain is None or self.estimate.gain >= 1


def judge(case: Case, proposal: Proposal, memory: Memory) -> Candidate | Refusal:
    """Return the candidate that a proposal makes once it is checked, sized and estimated, or why it is refused."""
    proposal, probe = _probe(case, proposal)
    refused = _refusal(case, proposal, probe) or _refusal_of_like(case, proposal) or _misfit(case, proposal)
    if refused is not None:
        return refused
    drafting = _drafting(case, proposal, probe.resolved)
    k = choose_k(case, proposal, drafting)
    sizing = memory.size(_setup(case, proposal, k))
    if sizing is not None and (length := memory.find_shorter_context(sizing)):
        proposal = _shorten(proposal, length)
        sizing = memory.size(_setup(case, proposal, k))
    setup = _setup(case, proposal, k)
    report = check(setup)
    refused = _refusal(case, proposal, report)
    if refused is not None:
        return refused
    if sizing is not None and (why := memory.describe_shortage(sizing)):
        return Refusal(method=proposal.method, reasons=(get_advice("does-not-fit").finding(why),))
    expected = estimate(case, proposal, drafting, k)
    return Candidate(
        method=proposal.method,
        setup=setup,
        report=report,
        sizing=sizing,
        estimate=expected,
        scheduled=_scheduled(case, proposal, drafting),
        place=proposal.place,
        at_hand=proposal.at_hand,
        reasons=(*proposal.reasons, *_reasons(proposal, expected), *_promise(case, expected)),
        caveats=(
            *_below(expected),
            *proposal.caveats,
            *(memory.find_caveats(sizing) if sizing is not None else ()),
            *find_caveats(case, proposal, report, k),
        ),
        alternatives=proposal.alternatives,
        published_results=get_method(proposal.method).advice.published_results,
    )


def _probe(case: Case, proposal: Proposal) -> tuple[Proposal, Report]:
    """Return a proposal and its report; with a smaller `max_num_seqs` if only the default one is refused."""
    report = check(_setup(case, proposal, max(proposal.lengths)))
    if not find_stops(report) or "max_num_seqs" in case.requirements.args:
        return proposal, report
    peak = case.requirements.traffic.peak_concurrency
    sequences = max(_FEW_SEQUENCES, 1 << (peak - 1).bit_length())
    reason = get_advice("fewer-sequences").finding(f"--max-num-seqs {sequences} leaves room for drafts in a step.")
    fewer = replace(proposal, args={**proposal.args, "max_num_seqs": sequences}, caveats=(*proposal.caveats, reason))
    again = check(_setup(case, fewer, max(proposal.lengths)))
    return (proposal, report) if _refusal(case, fewer, again) else (fewer, again)


def _shorten(proposal: Proposal, length: int) -> Proposal:
    note = get_advice("context-cut").finding(f"The model's own context does not fit; --max-model-len {length} does.")
    args = {**proposal.args, "max_model_len": length}
    return replace(proposal, args=args, caveats=(*proposal.caveats, note))


def _setup(case: Case, proposal: Proposal, k: int) -> Setup:
    return case.setup({**proposal.spec, "num_speculative_tokens": proposal.bound or k}, **proposal.args)


def _refusal(case: Case, proposal: Proposal, report: Report) -> Refusal | None:
    """Return why a proposal cannot be recommended for the release; None if it can."""
    stops = find_stops(report)
    if stops:
        gist = f"vLLM {case.release}: {stops[0].effect}. {str(stops[0]).removesuffix(stops[0].fix).strip()}"
        first = get_advice("refused-by-check").finding(gist, fix=stops[0].fix)
        return Refusal(method=proposal.method, reasons=(first, *stops))
    runs = get_method(report.resolved.method).name if report.resolved is not None else ""
    if runs != proposal.method:
        gist = f"vLLM {case.release} would run {runs or 'nothing'} instead."
        return Refusal(method=proposal.method, reasons=(get_advice("changed-by-release").finding(gist),))
    return None


def _refusal_of_like(case: Case, proposal: Proposal) -> Refusal | None:
    """Return why the release refuses a drafter like the proposed one, whose own config cannot be read here."""
    if proposal.stand_in is None:
        return None
    like = replace(proposal, spec={**proposal.spec, "model": json.dumps(dict(proposal.stand_in))})
    return _refusal(case, like, check(_setup(case, like, 1)))


def _misfit(case: Case, proposal: Proposal) -> Refusal | None:
    """Return why a drafter does not fit its target, if both are directories with weights."""
    name = proposal.spec.get("model")
    if case.target.directory is None or not isinstance(name, str) or not Path(name).is_dir():
        return None
    try:
        findings = inspect_pair(name, case.target.directory, version=case.release.version).findings
    except InvalidSetup as fault:
        findings = fault.findings
    faults = [each for each in findings if each.severity is Severity.ERROR]
    if not faults:
        return None
    gist = get_advice("does-not-match").finding(f"{name} does not fit {case.target.name}: {faults[0].message}")
    return Refusal(method=proposal.method, reasons=(gist, *faults))


def _drafting(case: Case, proposal: Proposal, resolved: Resolved | None) -> Drafting:
    baseline = case.machine.asynchronous if case.machine is not None else True
    own = resolved.async_scheduling if resolved is not None else None
    return Drafting(method=proposal.method, work=proposal.work, asynchronous=baseline if own is None else own)


def _scheduled(case: Case, proposal: Proposal, drafting: Drafting) -> Mapping[str, Any] | None:
    if KEY not in case.release.table("spec_fields") or proposal.bound is not None:
        return None
    rows = choose_schedule(case, proposal, drafting)
    if not rows:
        return None
    spec = {**proposal.spec, **make_schedule_keys(rows)}
    setup = case.setup(spec, **proposal.args)
    if not judge_schedule(setup).acts_as_written or _refusal(case, proposal, check(setup)):
        return None
    return spec


def _reasons(proposal: Proposal, expected: Estimate | None) -> Iterator[Finding]:
    if proposal.why_lengths is not None:
        yield proposal.why_lengths
    if expected is None or expected.break_even is None or proposal.bound is not None:
        return
    yield get_advice("k-by-cost").finding(
        f"k={expected.k} at {expected.sequences} sequences: a step takes {expected.break_even:.2f} times as long as "
        f"the baseline's, and emits {expected.expected_length:.2f} tokens. It is not larger than at a lower load or a "
        "lower temperature."
    )


def _promise(case: Case, expected: Estimate | None) -> Iterator[Finding]:
    promised = case.requirements.traffic.slo_tpot_s
    if promised is None or expected is None or expected.tpot_s is None or expected.baseline_s is None:
        return
    met = "met" if expected.tpot_s <= promised else "missed"
    yield get_advice("tpot-promise").finding(
        f"The expected time per output token is {1e3 * expected.tpot_s:.1f} ms, {1e3 * expected.baseline_s:.1f} ms "
        f"without speculation; the objective of {1e3 * promised:g} ms would be {met}."
    )


def _below(expected: Estimate | None) -> Iterator[Finding]:
    if expected is None or expected.gain is None or expected.break_even is None or expected.gain >= 1:
        return
    yield get_advice("below-break-even").finding(
        f"{expected.expected_length:.2f} tokens per step are expected, and {expected.break_even:.2f} are needed to "
        f"break even at {expected.sequences} sequences.",
        severity=Severity.WARNING,
    )
