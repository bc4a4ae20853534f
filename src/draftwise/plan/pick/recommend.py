"""The whole answer: candidates in order, each checked, sized and estimated, and every other method's refusal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwise.checkpoints.pair import inspect_pair
from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.knowledge.advice import find_drafting_cost, get_advice, give_advice, read_temperature_effect
from draftwise.knowledge.method_advice import PublishedResult
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import PublishedDrafter
from draftwise.plan.check import Report, Resolved, check
from draftwise.plan.cost.machine import Drafting
from draftwise.plan.pick.levers import Lever, MemoryCheck, Weight, find_levers, find_stops, make_lever, open_memory
from draftwise.plan.pick.proposals import Proposal, Refusal, list_methods, propose
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT, ExpectedTraffic, PickCase, Requirements, open_case
from draftwise.plan.pick.speedup_estimates import (
    PairEvidence,
    SpeedupEstimate,
    choose_k,
    choose_schedule,
    estimate,
    expect,
    find_context_factor,
)
from draftwise.plan.schedule.draft_lengths import KEY, judge_schedule, make_schedule_keys
from draftwise.plan.size import Sizing

_FEW_SEQUENCES = 64
"""Least `max_num_seqs` to fall back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMethod:
    """A method to try, with the config to paste and what is known about it."""

    method: str
    setup: Setup
    report: Report
    """Report of `check`: the release accepts the setup, and the server starts."""
    sizing: Sizing | None
    """Memory of each GPU; None if the target's size cannot be computed."""
    estimate: SpeedupEstimate | None
    scheduled: Mapping[str, Any] | None
    """The config with k by batch size, for varying load; None if one k is best, or the release has no such key."""
    place: int
    """Position in the guides' order of methods; the smallest is tried first."""
    at_hand: bool
    """Whether the operator gave its drafter."""
    reasons: tuple[Finding, ...]
    caveats: tuple[Finding, ...]
    alternatives: tuple[PublishedDrafter, ...]
    published_results: tuple[PublishedResult, ...]

    @property
    def pays(self) -> bool:
        """Whether its expected acceptance reaches break-even; true if that cannot be estimated."""
        return self.estimate is None or self.estimate.gain is None or self.estimate.gain >= 1


def _judge(case: PickCase, proposal: Proposal, memory: MemoryCheck) -> RankedMethod | Refusal:
    """Return the candidate that a proposal makes once it is checked, sized and estimated, or why it is refused."""
    proposal, probe = _probe(case, proposal)
    refused = _refusal(case, proposal, probe) or _refusal_of_like(case, proposal) or _misfit(case, proposal)
    if refused is not None:
        return refused
    drafting = _drafting(case, proposal, probe.resolved)
    k = choose_k(case, proposal, drafting)
    sizing = memory.size(_setup(case, proposal, k))
    for _ in range(2):  # fewer sequences, then a shorter context
        if sizing is not None and (flags := memory.fit(sizing)):
            proposal = _fit(proposal, flags)
            sizing = memory.size(_setup(case, proposal, k))
    setup = _setup(case, proposal, k)
    report = check(setup)
    refused = _refusal(case, proposal, report)
    if refused is not None:
        return refused
    if sizing is not None and (why := memory.describe_shortage(sizing)):
        return _refuse(proposal, "does-not-fit", what=why)
    expected = estimate(case, proposal, drafting, k)
    return RankedMethod(
        method=proposal.method,
        setup=setup,
        report=report,
        sizing=sizing,
        estimate=expected,
        scheduled=_scheduled(case, proposal, drafting),
        place=proposal.place,
        at_hand=proposal.at_hand,
        reasons=(*proposal.reasons, *_bound(expected), *_reasons(proposal, expected), *_promise(case, expected)),
        caveats=(
            *_below(expected),
            *proposal.caveats,
            *(memory.find_caveats(sizing) if sizing is not None else ()),
            *_find_caveats(case, proposal, report, k),
        ),
        alternatives=proposal.alternatives,
        published_results=get_method(proposal.method).advice.published_results,
    )


def _probe(case: PickCase, proposal: Proposal) -> tuple[Proposal, Report]:
    """Return a proposal and its report. With a smaller `max_num_seqs` if only the default one is refused."""
    report = check(_setup(case, proposal, max(proposal.lengths)))
    if not find_stops(report) or "max_num_seqs" in case.requirements.args:
        return proposal, report
    peak = case.requirements.traffic.peak_concurrency
    sequences = max(_FEW_SEQUENCES, 1 << (peak - 1).bit_length())
    reason = give_advice("fewer-sequences", sequences=sequences)
    fewer = replace(proposal, args={**proposal.args, "max_num_seqs": sequences}, caveats=(*proposal.caveats, reason))
    again = check(_setup(case, fewer, max(proposal.lengths)))
    return (proposal, report) if _refusal(case, fewer, again) else (fewer, again)


def _fit(proposal: Proposal, flags: Mapping[str, int]) -> Proposal:
    told = (
        give_advice("context-cut", length=flags["max_model_len"])
        if "max_model_len" in flags
        else give_advice("fewer-states", sequences=flags["max_num_seqs"])
    )
    return replace(proposal, args={**proposal.args, **flags}, caveats=(*proposal.caveats, told))


def _setup(case: PickCase, proposal: Proposal, k: int) -> Setup:
    return case.setup({**proposal.spec, "num_speculative_tokens": proposal.bound or k}, **proposal.args)


def _refuse(proposal: Proposal, code: str, *details: Finding, **values: object) -> Refusal:
    return Refusal(method=proposal.method, reasons=(give_advice(code, **values), *details))


def _refusal(case: PickCase, proposal: Proposal, report: Report) -> Refusal | None:
    """Return why a proposal cannot be recommended for the release. None if it can."""
    stops = find_stops(report)
    runs = get_method(report.resolved.method).name if report.resolved is not None else ""
    is_changed = runs != proposal.method
    if stops and not (runs and is_changed):
        gist = f"vLLM {case.release}: {stops[0].effect}. {str(stops[0]).removesuffix(stops[0].fix).strip()}"
        return _refuse(proposal, "refused-by-check", *stops, what=gist, how=stops[0].fix)
    if is_changed:
        return _refuse(proposal, "changed-by-release", release=case.release, runs=runs or "nothing")
    return None


def _refusal_of_like(case: PickCase, proposal: Proposal) -> Refusal | None:
    """Return why the release refuses a drafter like the proposed one, whose own config cannot be read here."""
    if proposal.stand_in is None:
        return None
    like = replace(proposal, spec={**proposal.spec, "model": json.dumps(dict(proposal.stand_in))})
    return _refusal(case, like, check(_setup(case, like, 1)))


def _misfit(case: PickCase, proposal: Proposal) -> Refusal | None:
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
    return _refuse(proposal, "does-not-match", *faults, model=name, target=case.target.name, why=faults[0].message)


def _drafting(case: PickCase, proposal: Proposal, resolved: Resolved | None) -> Drafting:
    baseline = case.machine.asynchronous if case.machine is not None else True
    own = resolved.async_scheduling if resolved is not None else None
    return Drafting(
        method=proposal.method,
        work=proposal.work,
        asynchronous=baseline if own is None else own,
        kv_bytes_per_token=proposal.kv_bytes_per_token,
    )


def _scheduled(case: PickCase, proposal: Proposal, drafting: Drafting) -> Mapping[str, Any] | None:
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


def _bound(expected: SpeedupEstimate | None) -> Iterator[Finding]:
    if expected is not None and expected.bound is not None:
        yield expected.bound.reason


def _reasons(proposal: Proposal, expected: SpeedupEstimate | None) -> Iterator[Finding]:
    if proposal.why_lengths is not None:
        yield proposal.why_lengths
    if expected is None or expected.break_even is None or proposal.bound is not None:
        return
    shown = {"k": expected.k, "sequences": expected.sequences, "break_even": expected.break_even}
    yield give_advice("k-by-cost", **shown, length=expected.expected_length)


def _promise(case: PickCase, expected: SpeedupEstimate | None) -> Iterator[Finding]:
    promised = case.requirements.traffic.slo_tpot_s
    if promised is None or expected is None or expected.tpot_s is None or expected.baseline_s is None:
        return
    met = "met" if expected.tpot_s <= promised else "missed"
    times = {"tpot_ms": 1e3 * expected.tpot_s, "baseline_ms": 1e3 * expected.baseline_s, "promised_ms": 1e3 * promised}
    yield give_advice("tpot-promise", **times, met=met)


def _below(expected: SpeedupEstimate | None) -> Iterator[Finding]:
    if expected is None or expected.modelled is None or expected.break_even is None or expected.modelled >= 1:
        return
    lengths = {"length": expected.expected_length, "needed": expected.break_even}
    yield give_advice("below-break-even", **lengths, sequences=expected.sequences)


_SAMPLING, _SAMPLED = "draft_sample_method", "probabilistic"
_SHOWN = ("drafter-not-here", "judged-as-base")
"""Findings of `check` that are no warnings: whose config was read, and whose was not."""
_BEYOND_GRAPHS = "cudagraph-cliff"
"""Finding of `check`: a step of `max_num_seqs` requests is larger than the largest captured graph."""


def _find_caveats(case: PickCase, proposal: Proposal, report: Report, k: int) -> Iterator[Finding]:
    warnings = [each for each in report.findings if each.severity is Severity.WARNING or each.code in _SHOWN]
    yield from (each for each in warnings if each.code != _BEYOND_GRAPHS)
    if (beyond := _find_beyond_graphs(case, proposal, k)) is not None:
        yield next((each for each in warnings if each.code == _BEYOND_GRAPHS), beyond)
    yield from _about_costs(case, proposal.method, report.resolved)
    yield from _about_temperature(case, proposal)
    if case.requirements.args.get("enable_lora"):
        yield give_advice("lora")
    parameters, table = case.requirements.traffic.parameters, case.release.table("sampling_params")
    if STRUCTURED_OUTPUT in parameters:
        yield give_advice("structured-output")
    if taken := sorted(each for each in parameters - {STRUCTURED_OUTPUT} if table[each] == "supported"):
        yield give_advice("sampling-parameter-supported", release=case.release, names=", ".join(taken))
    yield give_advice("compare-prefix-cache")
    yield from _about_target(case, proposal, k)


def _find_beyond_graphs(case: PickCase, proposal: Proposal, k: int) -> Finding | None:
    """Return the finding that the traffic's peak runs without graphs; `check` knows only `max_num_seqs`."""
    peak = case.requirements.traffic.peak_concurrency
    rows, reach = peak * ((proposal.bound or k) + 1), case.release.table("cudagraph_sizes").get("cap")
    if not isinstance(reach, int) or rows <= reach:
        return None
    return give_advice("graph-cliff", peak=peak, rows=rows, reach=reach)


def _about_costs(case: PickCase, method: str, resolved: Resolved | None) -> Iterator[Finding]:
    cost, what = find_drafting_cost(method), ""
    if cost is None:
        what = "was not measured, nor was a similar method's, so there is no estimate."
    elif not cost.measured:
        what = "was not measured. The estimate uses similar methods."
    elif resolved is not None and resolved.runner not in (None, cost.runner):
        what = f"was measured on model runner {cost.runner}, not {resolved.runner}."
    if what:
        yield give_advice("unmeasured", what=f"The cost of {method} {what}")
    if (gpus := case.tensor_parallel_size) > 1:
        yield give_advice("one-gpu-measured", gpus=gpus)
    if (hosts := -(-gpus // int(get_advice("two-hosts").numbers["gpus_of_a_host"]))) > 1:
        yield give_advice("two-hosts", gpus=gpus, hosts=hosts)


def _about_temperature(case: PickCase, proposal: Proposal) -> Iterator[Finding]:
    """Yield what the traffic's temperature takes off, and the key that gives a part of it back."""
    expectation, temperature = expect(case, proposal), case.requirements.traffic.temperature
    if expectation is None:
        yield give_advice("acceptance-unknown", method=proposal.method)
        return
    if (share := find_context_factor(case, proposal)) < 1:
        yield give_advice("long-context", context=case.requirements.traffic.context, factor=share)
    if not temperature:
        return
    found = give_advice("temperature-high", temperature=temperature, factor=expectation.factor)
    high = temperature > get_advice("temperature-high").numbers["above"]
    yield replace(found, severity=Severity.WARNING) if high else found
    row = case.release.table("spec_fields").get(_SAMPLING, {})
    if _SAMPLED in row.get("choices", ()) and _SAMPLING in get_method(proposal.method).keys:
        yield give_advice("sample-drafts", factor=read_temperature_effect().factor(temperature, sampled=True))


def _about_target(case: PickCase, proposal: Proposal, k: int) -> Iterator[Finding]:
    if case.machine is not None and case.machine.work.expert_bytes:
        machine, sequences = case.machine, case.batch().sequences
        plain, drafted = (
            machine.work.expert_share(machine.choosers(sequences, rows)) for rows in (sequences, sequences * (k + 1))
        )
        shares = {"plain": plain, "drafted": drafted}
        yield give_advice("moe-verification", target=case.target.name, sequences=sequences, k=k, **shares)
    as_published = case.target.origin == "table" and not case.requirements.args.get("quantization")
    if case.precision.bits == 4 and proposal.work is not None and not as_published:
        yield give_advice("quantized-target", precision=case.precision.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRanking:
    """Where to start, for one release. Every method of the release is in `ranked` or in `refused`, once."""

    requirements: Requirements
    version: str
    levers: tuple[Lever, ...]
    """Reasons against speculation, strongest first."""
    ranked: tuple[RankedMethod, ...]
    """Each is accepted by the release and fits into memory."""
    refused: tuple[Refusal, ...]

    @property
    def is_against(self) -> bool:
        """Whether a reason against speculation is so strong that no method is recommended."""
        return any(lever.weight is not Weight.DOUBT for lever in self.levers)

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        heavy = [lever for lever in self.levers if lever.weight is not Weight.DOUBT]
        if heavy and heavy[0].finding.code == "plain-refused":
            return heavy[0].finding.message
        if heavy:
            return f"Leave speculation off. {heavy[0].finding.message}"
        if not self.ranked:
            return f"No method can be recommended for this target on vLLM {self.version}."
        if self.levers:
            doubt = self.levers[0].finding.message
            return f"You should probably leave it off. {doubt} {_start(self.ranked[0], 'If you try it, start')}"
        return _start(self.ranked[0], "Start")


def pick(requirements: Requirements) -> MethodRanking:
    """Return where to start.

    Raises:
        InvalidSetup: the target or a drafter is not found, or the release is unknown.
    """
    case = open_case(requirements)
    memory = open_memory(case)
    levers = (*find_levers(case), *memory.levers)
    ending = next((lever for lever in levers if lever.weight is Weight.ENDS), None)
    ranked: list[RankedMethod] = []
    refused: list[Refusal] = []
    for method in list_methods(case):
        proposal = propose(case, method) if ending is None else Refusal(method=method, reasons=(ending.finding,))
        outcome = proposal if isinstance(proposal, Refusal) else _judge(case, proposal, memory)
        if isinstance(outcome, Refusal):
            refused.append(outcome)
        else:
            ranked.append(outcome)
    told = _temper(ranked)
    ordered = _order([_keep_below_successor(each, told) for each in told])
    if ordered and not any(candidate.pays for candidate in ordered):
        levers = (*levers, make_lever("nothing-pays", sequences=requirements.traffic.concurrency))
    levers = (*levers, *_find_doubt(case, ordered))
    return MethodRanking(
        requirements=requirements,
        version=str(case.release),
        levers=tuple(sorted(levers, key=lambda lever: list(Weight).index(lever.weight))),
        ranked=ordered,
        refused=tuple(refused),
    )


def _find_doubt(case: PickCase, ordered: Sequence[RankedMethod]) -> Iterator[Lever]:
    """Yield that one draft token a sequence is beyond what is nearly free to verify, where the best method may lose."""
    sequences = case.requirements.traffic.concurrency
    best = ordered[0].estimate if ordered and ordered[0].pays else None
    may_lose = best is not None and best.gain_range is not None and best.gain_range[0] < 1
    if may_lose and case.machine is not None and sequences < case.machine.balance_rows <= 2 * sequences:
        yield make_lever("verification-bound", rows=case.machine.balance_rows, sequences=sequences)


def _temper(ranked: Sequence[RankedMethod]) -> list[RankedMethod]:
    """Return the candidates, none of which nothing was read on this target above the best of which something was.

    Else missing evidence would be an advantage. What lookups find depends on the traffic, and they stay as they are.
    """
    read = [each.estimate.bound.expected for each in ranked if each.estimate is not None and each.estimate.bound]
    if not read:
        return list(ranked)
    return [each if not get_method(each.method).has_weights else _lower(each, max(read)) for each in ranked]


def _lower(candidate: RankedMethod, most: float) -> RankedMethod:
    own = candidate.estimate
    if own is None or own.bound is not None or own.gain is None or own.gain_range is None or own.gain <= most:
        return candidate
    reason = give_advice("not-above-the-read", most=most)
    low, high = own.gain_range
    bound = PairEvidence(expected=most, low=min(low, most), high=high, reason=reason)
    return replace(candidate, estimate=replace(own, bound=bound), caveats=(*candidate.caveats, reason))


def _keep_below_successor(candidate: RankedMethod, ranked: Sequence[RankedMethod]) -> RankedMethod:
    """Return a candidate that is not estimated above the method that does better wherever both have a drafter."""
    successor = get_method(candidate.method).advice.successor
    better = next((each.estimate for each in ranked if each.method == successor), None)
    own = candidate.estimate
    if own is None or better is None or own.gain is None or better.gain is None or own.gain <= better.gain:
        return candidate
    reason = give_advice("not-above-successor", method=candidate.method, other=successor)
    limit = PairEvidence.at_most(better.gain, own.gain_range or (own.gain, own.gain), reason)
    return replace(candidate, estimate=replace(own, bound=limit), caveats=(*candidate.caveats, reason))


def _order(candidates: Sequence[RankedMethod]) -> tuple[RankedMethod, ...]:
    """Return the candidates by estimated speed-up: drafters at hand first, what is not expected to pay last.

    Where nothing can be estimated the guides' order stands.
    """
    ordered = sorted(candidates, key=lambda each: (not each.pays, not each.at_hand, -_gain(each), each.place))
    return tuple(_explain_place(each, ordered[place + 1 :]) for place, each in enumerate(ordered))


def _gain(candidate: RankedMethod) -> float:
    """Return the speed-up as it is shown: candidates that look equal are in the guides' order."""
    gain = None if candidate.estimate is None else candidate.estimate.gain
    return 1.0 if gain is None else round(gain, 2)


def _explain_place(candidate: RankedMethod, after: Sequence[RankedMethod]) -> RankedMethod:
    """Add the reason why a candidate ranks before one that the guides try earlier."""
    passed = [each for each in after if each.pays and each.place < candidate.place]
    if not passed or not candidate.pays:
        return candidate
    gains = {"gain": _gain(candidate), "other": _gain(passed[0])}
    reason = give_advice("against-the-guide", method=passed[0].method, **gains)
    return replace(candidate, reasons=(*candidate.reasons, reason))


def _start(candidate: RankedMethod, opening: str) -> str:
    spec = candidate.setup.spec
    model = f"{spec.model}, " if spec is not None and spec.model else ""
    k = f"k={spec.num_speculative_tokens}" if spec is not None else ""
    return f"{opening} with {candidate.method} ({model}{k}), and measure it."


def decide_command(setup: Setup, traffic: ExpectedTraffic) -> str:
    """Return the `draftwise decide` line that compares a setup with its baseline on the operator's own prompts."""
    words = ["draftwise", "decide", "--url", "http://plain:8000", "--candidate-url", "http://speculating:8000"]
    if setup.spec is not None:
        words += ["--candidate", setup.spec.to_json()]
    words += ["--workload", "prompts.jsonl", "--temperature", f"{traffic.temperature:g}"]
    words += ["--concurrency", str(traffic.concurrency)]
    for flag, seconds in (("--slo-ttft-ms", traffic.slo_ttft_s), ("--slo-tpot-ms", traffic.slo_tpot_s)):
        if seconds is not None:
            words += [flag, f"{1e3 * seconds:g}"]
    return shlex.join(words)
