"""One decision from all comparisons: what to do, for which traffic, and when to undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftwise.core import Comparison, Decision, Interval, Run, Verdict
from draftwise.measure.cell import ALL
from draftwise.measure.compare import compare
from draftwise.measure.context import find_missing
from draftwise.measure.guards import check_run
from draftwise.measure.thresholds import thresholds_of

__all__ = ["TOKENS_PER_STEP", "decide", "format_ratio"]

TOKENS_PER_STEP = (
    "Tokens per step = generation_tokens / (generation_tokens - spec_decode_num_accepted_tokens), from the growth of "
    "the server's counters: what one forward pass of the target emits, steps without a draft included."
)


def decide(run: Run) -> Decision:
    """Return what a run concludes; the same readings always give the same decision."""
    thresholds = thresholds_of(run)
    findings = tuple(check_run(run, thresholds))
    comparisons = compare(run, findings, thresholds)
    won = _winners(comparisons)
    return Decision(
        sentence=_sentence(comparisons, won),
        rollback=tuple(_rollback(winner) for winner in won.values()),
        comparisons=comparisons,
        findings=findings,
        missing_context=find_missing(run.plan, run.context),
    )


def format_ratio(ratio: Interval) -> str:
    """Return e.g. `1.92x (1.81-2.03)`: the ratio and its confidence interval."""
    return f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _winners(comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
    """Return the fastest candidate to adopt by workload (and for all together), where there is one."""
    best: dict[str, Comparison] = {}
    for each in comparisons:
        if each.verdict is Verdict.ADOPT:
            rival = best.get(each.workload)
            if rival is None or each.speedup.value > rival.speedup.value:
                best[each.workload] = each
    return best


def _sentence(comparisons: Sequence[Comparison], won: Mapping[str, Comparison]) -> str:
    if not comparisons:
        return "Nothing was measured on both sides yet, so there is nothing to decide."
    names = list(dict.fromkeys(each.workload for each in comparisons if each.workload != ALL))
    if not won:
        return _nothing_pays(comparisons, names)
    parts = [
        f"adopt {candidate} for {_listed([f'{each.workload} {format_ratio(each.speedup)}' for each in group])}"
        for candidate, group in _by_candidate([won[name] for name in names if name in won])
    ]
    if lost := [name for name in names if name not in won]:
        parts.append(f"keep plain decoding for {_listed(lost)}")
    if len(names) > 1:
        parts.append(_one_for_all(won.get(ALL)))
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]} (ranges: 95 % confidence)."


def _by_candidate(winners: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    names = dict.fromkeys(each.candidate for each in winners)
    return [(name, [each for each in winners if each.candidate == name]) for name in names]


def _one_for_all(winner: Comparison | None) -> str:
    if winner is None:
        return "no single setting pays for all of it"
    return f"one setting for all of it: {winner.candidate}, {format_ratio(winner.speedup)}"


def _nothing_pays(comparisons: Sequence[Comparison], names: Sequence[str]) -> str:
    best = max((each for each in comparisons if each.workload != ALL), key=lambda each: each.speedup.value)
    return (
        f"Keep plain decoding for {_listed(names)}: no candidate earned an adoption; the fastest was "
        f"{best.candidate} on {best.workload} with {format_ratio(best.speedup)}, {best.verdict}: {best.reason}."
    )


def _rollback(winner: Comparison) -> str:
    """Return when to go back: where the measured cost of a step no longer buys enough tokens.

    The cost of a step depends on batch and k, hardly on luck, so speed-up moves with tokens per step.
    """
    measured, where = winner.counters.tokens_per_step, f"{winner.candidate} on {winner.workload}"
    if measured is None:
        return f"{where}: roll back when output tokens per second fall to plain's."
    even = measured / winner.speedup.value
    return (
        f"{where}: roll back when tokens per step stay under {even:.2f} for an hour, where the gain is gone "
        f"(measured here: {measured:.2f})."
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
