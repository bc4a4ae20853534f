"""What to know before switching a recommended method on."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Finding, Severity
from draftwise.knowledge.advice import find_drafting_cost, get_advice, read_temperature_effect
from draftwise.knowledge.methods import get_method
from draftwise.plan.check import Report, Resolved
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.expectation import expect
from draftwise.plan.pick.proposal import Proposal
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT

__all__ = ["find_caveats"]

_SAMPLING, _SAMPLED = "draft_sample_method", "probabilistic"
_UNSEEN = "drafter-not-here"
"""Finding of `check`: the drafter's config could not be read."""
_BEYOND_GRAPHS = "cudagraph-cliff"
"""Finding of `check`: a step of `max_num_seqs` requests is larger than the largest captured graph."""


def find_caveats(case: Case, proposal: Proposal, report: Report, k: int) -> Iterator[Finding]:
    """Yield what `check` warns of, and what follows from load, use and target."""
    warnings = [each for each in report.findings if each.severity is Severity.WARNING or each.code == _UNSEEN]
    yield from (each for each in warnings if each.code != _BEYOND_GRAPHS)
    if (beyond := _find_beyond_graphs(case, proposal, k)) is not None:
        yield next((each for each in warnings if each.code == _BEYOND_GRAPHS), beyond)
    yield from _about_costs(case, proposal.method, report.resolved)
    yield from _about_temperature(case, proposal)
    yield from _about_use(case)
    yield from _about_target(case, proposal, k)


def _find_beyond_graphs(case: Case, proposal: Proposal, k: int) -> Finding | None:
    """Return the finding that the traffic's peak runs without graphs; `check` knows only `max_num_seqs`."""
    rule, peak = get_advice("graph-cliff"), case.requirements.traffic.peak_concurrency
    rows, reach = peak * ((proposal.bound or k) + 1), case.release.table("cudagraph_sizes").get("cap")
    if not isinstance(reach, int) or rows <= reach:
        return None
    return rule.finding(
        f"{peak} sequences make steps of {rows} tokens, and graphs are captured up to {reach}.",
        severity=Severity.WARNING,
        fix="Raise --max-cudagraph-capture-size, or draft fewer tokens at the peak.",
    )


def _about_costs(case: Case, method: str, resolved: Resolved | None) -> Iterator[Finding]:
    cost, rule = find_drafting_cost(method), get_advice("unmeasured")
    if cost is None:
        yield rule.finding(f"The cost of {method} was not measured, nor that of a similar one: nothing is estimated.")
    elif not cost.measured:
        yield rule.finding(f"The cost of {method} was not measured: the estimate uses that of similar methods.")
    elif resolved is not None and resolved.runner not in (None, cost.runner):
        yield rule.finding(f"The cost of {method} was measured on model runner {cost.runner}, not {resolved.runner}.")
    if case.tensor_parallel_size > 1:
        yield get_advice("one-gpu-measured").finding(f"The target runs on {case.tensor_parallel_size} GPUs.")


def _about_temperature(case: Case, proposal: Proposal) -> Iterator[Finding]:
    """Yield what the traffic's temperature takes off, and the key that gives a part of it back."""
    expectation, temperature = expect(case, proposal), case.requirements.traffic.temperature
    if expectation is None:
        yield get_advice("acceptance-unknown").finding(f"Nobody measured the acceptance of {proposal.method} yet.")
        return
    if not temperature:
        return
    rule = get_advice("temperature-high")
    high = temperature > rule.numbers["above"]
    yield rule.finding(
        f"At temperature {temperature:g} a draft token is taken to be accepted {expectation.factor:.2f} times as often "
        "as at 0, which is in the numbers.",
        severity=Severity.WARNING if high else Severity.INFO,
    )
    row = case.release.table("spec_fields").get(_SAMPLING, {})
    if _SAMPLED in row.get("choices", ()) and _SAMPLING in get_method(proposal.method).keys:
        factor = read_temperature_effect().factor(temperature, sampled=True)
        yield get_advice("sample-drafts").finding(
            f"Sampled drafts are accepted more often at this temperature: about {factor:.2f} times as often as at 0.",
            fix=f'Measure "{_SAMPLING}": "{_SAMPLED}" beside this config.',
        )


def _about_use(case: Case) -> Iterator[Finding]:
    if case.requirements.args.get("enable_lora"):
        yield get_advice("lora").finding("LoRA adapters are served.", severity=Severity.WARNING)
    if STRUCTURED_OUTPUT in case.requirements.traffic.parameters:
        yield get_advice("structured-output").finding("Requests ask for structured output.")
    yield get_advice("compare-prefix-cache").finding("Compare time to first token and prefix-cache hits, too.")


def _about_target(case: Case, proposal: Proposal, k: int) -> Iterator[Finding]:
    if case.machine is not None and case.machine.work.expert_bytes:
        machine, sequences = case.machine, case.batch().sequences
        plain, drafted = (
            machine.work.expert_share(machine.choosers(sequences, rows)) for rows in (sequences, sequences * (k + 1))
        )
        yield get_advice("moe-verification").finding(
            f"{case.target.name} is a mixture of experts: at {sequences:g} sequences a step reads {plain:.0%} of their "
            f"weights, and {drafted:.0%} with k={k}, which is in the numbers."
        )
    as_published = case.target.origin == "table" and not case.requirements.args.get("quantization")
    if case.precision.bits == 4 and proposal.work is not None and not as_published:
        yield get_advice("quantized-target").finding(f"The target runs in {case.precision.name}.")
