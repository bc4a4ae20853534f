"""Concludes a run: numbers, validity, verdicts, the setup to run, and the range in which it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from draftwise.core import (
    Comparison,
    Decision,
    Finding,
    Hardware,
    Omission,
    Run,
    RunContext,
    RunPlan,
    Scope,
    ServerRecord,
    TargetModel,
    UnmeasuredCell,
    Workload,
)
from draftwise.core.comparison import ALL
from draftwise.deciding.bands import divide_loads
from draftwise.deciding.comparison.comparisons import ComparisonNumbers, Estimates, compare_cells
from draftwise.deciding.comparison.latencies import Latencies, summarise_latencies
from draftwise.deciding.comparison.pooled_acceptance import (
    Conversion,
    PooledAcceptance,
    pool_acceptance,
    trace_conversion,
)
from draftwise.deciding.disturbance import find_lost_pairs, measure_use, set_aside_disturbed
from draftwise.deciding.recommendations import advise
from draftwise.deciding.thresholds import Thresholds, get_thresholds
from draftwise.deciding.token_unit import count_soundly
from draftwise.deciding.validity.all_checks import check_validity
from draftwise.deciding.validity.drafting_checks import UNPROVEN
from draftwise.deciding.validity.output_checks import TextQuality
from draftwise.deciding.verdict import judge_cell
from draftwise.knowledge.messages import fault, note
from draftwise.runs.turn_order import count_needed, list_planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """A run and its conclusions."""

    run: Run
    decision: Decision
    thresholds: Thresholds
    latencies: Sequence[Latencies]
    acceptances: Sequence[PooledAcceptance]
    conversions: Sequence[Conversion]
    quality: Sequence[TextQuality]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredEvidence:
    """A run, its numbers and their validity: the basis of decisions and early stopping."""

    run: Run
    """The run, without disturbed turns and their answers."""
    thresholds: Thresholds
    estimates: tuple[Estimates, ...]
    """Estimates of every workload, condition and candidate, pooled rows last."""
    comparisons: tuple[Comparison, ...]
    """Comparisons of the same cells, with their verdicts."""
    findings: tuple[Finding, ...]
    """Findings about the whole run; an error blocks every adoption."""
    quality: tuple[TextQuality, ...]
    """Quality of the baseline's outputs."""


def conclude_run(run: Run) -> Conclusions:
    """Return a run's conclusions. The same answers always give the same conclusions."""
    evidence = gather_evidence(run)
    cells = [each.cell for each in evidence.estimates]
    latencies = summarise_latencies(evidence.run, cells, evidence.thresholds)
    return Conclusions(
        run=evidence.run,
        decision=_decide(evidence, latencies),
        thresholds=evidence.thresholds,
        latencies=latencies,
        acceptances=pool_acceptance(cells),
        conversions=trace_conversion(evidence.comparisons),
        quality=evidence.quality,
    )


def gather_evidence(run: Run) -> GatheredEvidence:
    """Return a run's verdicts and their basis."""
    thresholds = get_thresholds(run)
    counted = count_soundly(run)
    run = counted.run
    uses = measure_use((*run.turns, *run.set_aside))
    whole, run = run, set_aside_disturbed(run, thresholds, uses)
    lost = find_lost_pairs(run)
    found = compare_cells(run, lost, thresholds)
    spared = set_aside_disturbed(whole, thresholds, uses, spares_pace=True) if lost else run
    again = compare_cells(spared, lost, thresholds) if spared.turns != run.turns else ()
    with_lost = {each.comparison.key: each for each in again}
    checked = check_validity(run, found, lost, uses, thresholds)
    of_run = (*counted.findings, *checked.of_run)
    comparisons = (
        # Findings of a pooled row count for its verdict, and are reported once, with the rows that it pools.
        judge_cell(
            each,
            [*own, *_find_of_members(each, found, checked.of_cells), *of_run],
            () if each.comparison.workload == ALL else own,
            thresholds,
            with_lost=with_lost.get(each.comparison.key),
        )
        for each, own in zip(found, checked.of_cells, strict=True)
    )
    return GatheredEvidence(
        run=run,
        thresholds=thresholds,
        estimates=tuple(each.estimates for each in found),
        comparisons=tuple(comparisons),
        findings=of_run,
        quality=checked.quality,
    )


def _find_of_members(
    pooled: ComparisonNumbers, found: Sequence[ComparisonNumbers], findings: Sequence[Sequence[Finding]]
) -> Iterator[Finding]:
    """Yield what was found about the rows that a pooled row pools: what blocks a part blocks the whole."""
    place = (pooled.comparison.condition, pooled.comparison.candidate)
    if pooled.comparison.workload == ALL:
        for each, own in zip(found, findings, strict=True):
            member = each.comparison
            if member.workload != ALL and (member.condition, member.candidate) == place:
                yield from own


def _decide(evidence: GatheredEvidence, latencies: Sequence[Latencies]) -> Decision:
    """Return what to do, for which traffic, up to which load, and when to undo it."""
    run, comparisons, baseline = evidence.run, evidence.comparisons, evidence.run.plan.arms[0].name
    sweeps = divide_loads(run, evidence.estimates, comparisons, margin=evidence.thresholds.margin)
    advice = advise(comparisons, sweeps, latencies, baseline, evidence.thresholds)
    reach = find_reach(run, comparisons)
    return Decision(
        baseline=baseline,
        comparisons=comparisons,
        recommendations=advice.recommendations,
        findings=(*evidence.findings, *sweeps.findings, *reach.failures, *find_early_end(run)),
        missing_context=reach.missing_context,
        scope=reach.scope,
        rollback=advice.rollback,
        crossovers=sweeps.crossovers,
        bands=sweeps.bands,
        single_settings=sweeps.single_settings,
        schedules=sweeps.schedules,
        unmeasured=reach.unmeasured,
        omissions=(*run.omissions, *_find_rest(run)),
        num_unfinished=run.num_unfinished,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The range in which a decision holds. Outside, it is a guess."""

    scope: Scope
    unmeasured: tuple[UnmeasuredCell, ...]
    """Cells planned but not measured."""
    missing_context: tuple[str, ...]
    """Context that evidence needs (requirement E4) and the run lacks."""
    failures: tuple[Finding, ...]
    """Candidates that the run continued without, each with its server's error."""


def find_reach(run: Run, comparisons: Sequence[Comparison]) -> Reach:
    """Return the range in which a run's decision holds."""
    plan = _without_failed(run)
    return Reach(
        scope=_find_scope(run, comparisons),
        unmeasured=tuple(_find_unmeasured(run, plan)),
        missing_context=find_missing(plan, run.context),
        failures=tuple(_describe_failures(run)),
    )


def _without_failed(run: Run) -> RunPlan:
    """Return the plan without the candidates whose servers failed before anything was measured."""
    failed = {each.candidate for each in run.omissions if each.error}
    return run.plan.keep_arms([arm.name for arm in run.plan.arms if arm.name not in failed])


def _describe_failures(run: Run) -> Iterator[Finding]:
    for each in run.omissions:
        if each.candidate is not None and each.error:
            yield fault("server-failed", candidate=each.candidate, error=each.error)


_USED = 0.9
"""Share of the time from which on a run has used it."""


def find_early_end(run: Run) -> Iterator[Finding]:
    """Yield a finding if the run ended early, with the reason why nothing was left to measure."""
    last, minutes = max(run.estimates, key=lambda each: each.at_s, default=None), run.plan.minutes
    if last is None or minutes is None or last.ahead or last.at_s >= _USED * 60 * minutes:
        return
    if any(not each.error for each in run.omissions):
        return  # what was left out for lack of time would use more of it
    asked = {(each.workload, each.prompt_id) for each in run.answers if each.measured}
    if all((each.name, prompt.id) in asked for each in run.plan.workloads for prompt in each.prompts):
        yield note("ended-early", at_min=last.at_s / 60, minutes=minutes)


def _find_rest(run: Run) -> Iterator[Omission]:
    if run.seconds_short:
        reason = f"it was stopped {run.seconds_short:.0f} s before its end, so verdicts are those so far. Use --resume"
        yield Omission(what="the rest of the run", reason=reason)


def _find_scope(run: Run, comparisons: Sequence[Comparison]) -> Scope:
    """Return what was measured; outside of it a decision is a guess."""
    measured = {turn.condition for turn in run.turns}
    return Scope(
        workloads={each.name: len(each.prompts) for each in run.plan.workloads},
        drawn={each.name: _describe_draw(run, each) for each in run.plan.workloads},
        repeats={each.name: each.num_repeats for each in run.plan.workloads if each.num_repeats},
        conditions=tuple(each for each in run.conditions if each.label in measured),
        model=run.context.model_name or "",
        dtype=run.context.model.dtype or "",
        hardware=_find_hardware(run.context),
        servers=tuple(dict.fromkeys(_list_versions(run))),
        uncompared=tuple(_list_with(comparisons, "outputs-not-compared")),
        unproven=tuple(_list_with(comparisons, UNPROVEN)),
    )


def _list_with(comparisons: Sequence[Comparison], code: str) -> list[str]:
    """Return the candidates that have a finding."""
    return list(dict.fromkeys(each.candidate for each in comparisons if any(f.code == code for f in each.findings)))


def _describe_draw(run: Run, workload: Workload) -> str:
    """Return how many prompts of how many were asked, and how they were chosen."""
    asked = {each.prompt_id for each in run.answers if each.workload == workload.name and each.measured}
    of = workload.population or len(workload.prompts)
    if workload.choice:
        return f"{len(asked)} prompts, drawn from {workload.choice}"
    if len(asked) >= of:
        return f"{len(asked)} prompts"
    if all(each.origin is None for each in workload.prompts):
        return f"{len(asked)} of {of} prompts"
    tenants = len({each.origin.cluster for each in workload.prompts if each.origin is not None and each.origin.cluster})
    over = f", from {tenants} tenants or conversations" if tenants else ""
    return f"{len(asked)} of {of} prompts, sampled from the log{over}"


def _find_hardware(context: RunContext) -> tuple[str, ...]:
    """Return what all servers run on as the operator told it, else as each tells it, else as it was seen here."""
    hardware = context.hardware
    if hardware.told:
        return (hardware.told,)
    of_servers = tuple(dict.fromkeys(each.hardware for each in context.servers.values() if each.hardware))
    if of_servers or hardware.gpus or not hardware.cpu:
        return of_servers or tuple(map(str, hardware.gpus))
    return (f"{hardware.cores} cores of {hardware.cpu}" if hardware.cores else hardware.cpu,)


def _list_versions(run: Run) -> Iterator[str]:
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        if server.release:
            yield f"{server.version.get('engine', '')} {server.release}".strip()


def _find_unmeasured(run: Run, plan: RunPlan) -> Iterator[UnmeasuredCell]:
    """Yield the cells with fewer repetitions than were planned, and those for which a workload has too few prompts.

    If the time budget decides the number of prompts, yield only the cells without any measurement.

    A block counts when the candidate and the baseline both finished it, be it disturbed: those are lost, and said
    where the numbers are. Cells that an adaptive run stopped early had all the repetitions that they needed.
    """
    baseline, *candidates = (arm.name for arm in plan.arms)
    stopped = {each.key for each in run.settled}
    done = {(turn.arm, turn.workload, turn.condition, turn.repeat, turn.block) for turn in (*run.turns, *run.set_aside)}
    planned = list_planned(run)
    for workload, condition, candidate in product(run.plan.workloads, run.conditions, candidates):
        place = (workload.name, condition.label)
        wanted = planned.get((candidate, *place), {})
        counts = {
            repeat: sum(all((arm, *place, repeat, block) in done for arm in (baseline, candidate)) for block in numbers)
            for repeat, numbers in wanted.items()
        }
        whole = [repeat for repeat, numbers in wanted.items() if counts[repeat] == len(numbers)]
        never = not wanted and (*place, candidate) not in stopped
        if run.plan.minutes is not None and not run.plan.one_at_a_time and any(counts.values()):
            continue
        if never or len(whole) < len(wanted):
            yield UnmeasuredCell(
                candidate=candidate,
                workload=workload.name,
                condition=condition,
                repetitions=len(whole),
                planned=len(wanted),
                odd_blocks=sum(count for repeat, count in counts.items() if repeat not in whole),
                blocks_each=max(map(len, wanted.values()), default=0),
                needed=count_needed(workload, condition, run.plan.turn_s) if never else None,
            )


def find_missing(plan: RunPlan, context: RunContext) -> tuple[str, ...]:
    """Return the context that evidence needs (requirement E4) and a run lacks."""
    hardware, model = context.hardware, context.model
    servers = [context.server(arm.name) for arm in plan.arms]
    of_servers = all(server.hardware for server in servers)
    required = {
        "hardware": hardware != Hardware() or of_servers,
        "GPU and its driver": not _need_gpu(servers) or hardware.gpus or hardware.told or of_servers,
        "model": context.model_name,
        "precision": _precision(model, servers),
        "runtime version": all(server.release for server in servers),
        "request parameters": plan.repeats and plan.conditions,
        "workload": plan.workloads and all(workload.prompts for workload in plan.workloads),
        "serve command of every arm": all(server.command for server in servers),
    }
    return tuple(name for name, given in required.items() if not given)


def _need_gpu(servers: Iterable[ServerRecord]) -> bool:
    """Return whether a server says that it computes on a GPU."""
    return any(
        str(server.version.get("device", "")).startswith("cuda") or server.started.get("gpus") for server in servers
    )


def _precision(model: TargetModel, servers: Iterable[ServerRecord]) -> str | None:
    """Return the precision: as told or found on disk (`auto` says nothing), else the one that all servers tell."""
    if model.dtype not in (None, "auto"):
        return str(model.dtype)
    told = {server.version.get("dtype") for server in servers}
    return str(told.pop()) if len(told) == 1 and None not in told else None
