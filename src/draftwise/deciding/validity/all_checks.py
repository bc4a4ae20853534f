"""Runs all validity checks: on a run as a whole, and on each of its comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from draftwise.core import Answer, Counters, Finding, Run, Severity
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.comparison.comparisons import ComparisonNumbers, Estimates
from draftwise.deciding.comparison.recall import Recall, list_answers, measure_growth, shows_gain, split_by_first
from draftwise.deciding.disturbance import LostPair, MachineUse
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.drafting_checks import check_drafting
from draftwise.deciding.validity.load_checks import check_client, check_load, check_queues, check_refusals
from draftwise.deciding.validity.machine_checks import check_machine
from draftwise.deciding.validity.output_checks import TextQuality, check_outputs, check_texts
from draftwise.deciding.validity.server_checks import check_servers
from draftwise.knowledge.messages import fault, note, warning
from draftwise.statistics import FEWEST_PROMPTS
from draftwise.workloads import check_workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityReport:
    """Results of the validity checks."""

    of_run: tuple[Finding, ...]
    """Findings about the whole run; an error blocks every adoption."""
    of_cells: tuple[tuple[Finding, ...], ...]
    """Findings about each comparison; an error blocks its adoption."""
    quality: tuple[TextQuality, ...]
    """Quality of the baseline's outputs."""


def check_validity(
    run: Run,
    found: Sequence[ComparisonNumbers],
    lost: Sequence[LostPair],
    uses: Sequence[MachineUse],
    thresholds: Thresholds,
) -> ValidityReport:
    """Check a run and each of its comparisons.

    Args:
        run: the run without disturbed turns.
        found: its comparisons.
        lost: pairs that candidates lost to disturbances.
        uses: use of the machine in all turns, including disturbed ones.
        thresholds: the run's thresholds.
    """
    of_baseline = _list_baseline_answers(run)
    every_turn, is_ours = (*run.turns, *run.set_aside), all(arm.url is None for arm in run.plan.arms)
    quality, of_texts = check_texts(run, of_baseline, thresholds)
    of_run = [
        *check_servers(run, thresholds),
        *check_load(run, of_baseline, thresholds),
        *check_machine(every_turn, uses, thresholds, is_ours=is_ours),
        *_disturbed(run, lost),
        *_repeated_prompts(run),
        *of_texts,
        *_estimated_counts(run),
        *_warm_prefixes([each.estimates.whole for each in found], thresholds),
    ]
    of_cells = [_check_comparison(run, each, thresholds) for each in found]
    return ValidityReport(
        of_run=tuple(of_run),
        of_cells=tuple(
            (*own, *_wrong_when_greedy(each, found, of_cells)) for each, own in zip(found, of_cells, strict=True)
        ),
        quality=tuple(quality),
    )


def _check_comparison(run: Run, found: ComparisonNumbers, thresholds: Thresholds) -> list[Finding]:
    """Return what is wrong with one comparison."""
    cell = found.estimates.cell
    return [
        *check_drafting(run, cell, found.comparison, thresholds),
        *check_client(run, cell, thresholds),
        *check_refusals(run, cell),
        *check_queues(run, cell, thresholds),
        *check_outputs(run, found, thresholds),
        *_memory(run, found.estimates, thresholds),
        *_prompts(run, cell),
        *_left_out(found.estimates),
        *_depends_on_place(found),
    ]


def _wrong_when_greedy(
    of: ComparisonNumbers, found: Sequence[ComparisonNumbers], findings: Sequence[Sequence[Finding]]
) -> Iterator[Finding]:
    """Yield that a candidate's outputs at temperature 0 are wrong: above it outputs cannot be compared one by one."""
    if of.comparison.condition.temperature == 0:
        return
    for each, own in zip(found, findings, strict=True):
        other = each.comparison
        if other.candidate == of.comparison.candidate and any(_tells_wrong_outputs(finding) for finding in own):
            yield fault("outputs-differ", workload=other.workload, label=other.condition.label)
            return


def _tells_wrong_outputs(finding: Finding) -> bool:
    return finding.code == "outputs-differ" and finding.severity is Severity.ERROR


def _list_baseline_answers(run: Run) -> list[Answer]:
    """Return the baseline's measured answers without an error."""
    baseline = run.plan.arms[0].name
    return [each for each in run.answers if each.arm == baseline and each.measured and each.error is None]


def _repeated_prompts(run: Run) -> Iterator[Finding]:
    """Yield workloads that ask the same more than once."""
    measured = any(arm.name not in run.plan.synthetic for arm in run.plan.arms[1:])
    for found in check_workloads(run.plan.workloads, measures_acceptance=measured):
        if found.severity is not Severity.ERROR:
            yield found


def _estimated_counts(run: Run) -> Iterator[Finding]:
    if any(answer.total_exact and not answer.counts_exact for answer in run.answers):
        yield warning("token-counts-estimated")


def _disturbed(run: Run, lost: Sequence[LostPair]) -> Iterator[Finding]:
    """Yield how many pairs of turns each candidate lost to disturbances."""
    if not lost:
        return
    counts = Counter(each.candidate for each in lost)
    left = Counter(arm for arm, _ in {(turn.arm, turn.block_key) for turn in run.turns})
    each_of = [f"{name} {count} of {count + left[name]}" for name, count in counts.most_common()]
    text = (
        "the same pairs of turns (candidate and baseline) were disturbed every time and do not count: "
        f"{', '.join(each_of)}. The first pair ({lost[0].block[0]}, {lost[0].block[1]}) was lost because "
        f"{lost[0].reason}"
    )
    severity, fix = Severity.INFO if run.turns else Severity.WARNING, "Stop the other processes, and measure again."
    yield Finding(code="disturbed-blocks", severity=severity, message=f"{text}.", fix=fix)


def _warm_prefixes(cells: Sequence[Cell], thresholds: Thresholds) -> Iterator[Finding]:
    """Where the baseline's prefix cache serves later repetitions with the prompts of the first one."""
    for cell in cells:
        mine = [turn for turn in cell.turns if turn.arm == cell.baseline]
        first, later = (
            Counters.total(turn.counters for turn in mine if (turn.repeat in cell.repetitions[:1]) is is_first)
            for is_first in (True, False)
        )
        before, after = first.prefix_hit_rate, later.prefix_hit_rate
        if before is not None and after is not None and after > before + thresholds.prefix_hit_loss:
            yield note("prefix-cache-warm")
            return


def _prompts(run: Run, cell: Cell) -> Iterator[Finding]:
    """Yield what the prompts of a comparison cannot show about its candidate."""
    if len(cell.units) < FEWEST_PROMPTS:
        yield note("few-prompts", count=len(cell.units))
    measured = cell.candidate not in run.plan.synthetic
    mine = [workload for workload in run.plan.workloads if workload.name in cell.workloads]
    for found in check_workloads(mine, measures_acceptance=measured):
        if found.severity is Severity.ERROR:
            yield replace(found, where="")


def _memory(run: Run, estimates: Estimates, thresholds: Thresholds) -> Iterator[Finding]:
    """Where measured answers may have been helped by earlier answers to the same prompts."""
    cell = estimates.cell
    if estimates.recall is Recall.PRESUMED:
        yield from _presumed(run, estimates)
    if estimates.is_new and estimates.recall is not Recall.NONE:
        return
    mine, earlier = list_answers(cell), _list_earlier(run, cell)
    if earlier:
        begin = min(answer.turn for answer in mine)
        splits = split_by_first([*earlier, *mine], lambda answer: answer.turn >= begin)
        if shows_gain(splits, cell, thresholds.warmed):
            growth = f"{measure_growth(splits):.2f}x the tokens per step on repeated prompts"
            text = f"a cross-request cache helps it ({growth}), and it had answered these prompts under "
            text += f"{earlier[0].condition} before."
            fix = "Measure one load per run with it, or give each load its own prompts."
            yield Finding.error("warmed-by-other-loads", text, fix=fix)
    first = min(cell.repetitions, default=0)
    of_first: Sequence[Answer] = [answer for answer in mine if answer.repeat == first]
    splits = split_by_first(of_first, lambda answer: answer.measured)
    if shows_gain(splits, cell, thresholds.warmed):
        text = (
            "one turn sends some prompts several times, and a cross-request cache helps: "
            f"{measure_growth(splits):.2f}x the tokens per step from the second time on."
        )
        yield Finding.error("warmed-within-a-turn", text, fix="Give the workload more prompts.")


def _presumed(run: Run, estimates: Estimates) -> Iterator[Finding]:
    """What is left of a candidate that could remember, and was not shown to gain nothing from it."""
    reason = run.plan.remembering[estimates.cell.candidate]
    if not estimates.is_new:
        yield fault("memory-not-excluded", reason=reason)
    elif estimates.repeated is not None:
        yield note("first-answers-only", reason=reason)


def _list_earlier(run: Run, cell: Cell) -> list[Answer]:
    """Return what the candidate had answered of these workloads, at this temperature, under loads before this one."""
    begin = min((turn.turn for turn in cell.turns if turn.arm == cell.candidate), default=0)
    alike = {each.label for each in run.conditions if each.temperature == cell.condition.temperature}
    return [
        answer
        for answer in run.answers
        if answer.arm == cell.candidate
        and answer.turn < begin
        and answer.workload in cell.workloads
        and answer.condition in alike - {cell.condition.label}
    ]


def _depends_on_place(found: ComparisonNumbers) -> Iterator[Finding]:
    """Yield that the gain depends on where in the log a prompt stands; the draw has taken care of that."""
    if found.order_break is not None:
        row, parts = found.order_break
        yield note("gain-depends-on-place", before=parts.before, row=row + 1, after=parts.after)


def _left_out(estimates: Estimates) -> Iterator[Finding]:
    """Yield that the later repetitions were left out, where they were."""
    if estimates.repeated is None or estimates.recall is not Recall.SHOWN:
        return
    new, old = (each.counters[each.candidate].tokens_per_step or 0 for each in (estimates.cell, estimates.repeated))
    warm = (
        ""
        if estimates.warm_speedup is None
        else f"; if it knew every prompt, it would be {estimates.warm_speedup:.2f}x"
    )
    yield note("repeated-prompts-warm-cache", old=old, new=new, warm=warm)
