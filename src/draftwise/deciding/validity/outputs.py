"""Whether a candidate changes the outputs, and whether rounding alone explains that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb

import numpy as np

from draftwise.core import Answer, Divergence, Finding, Run
from draftwise.deciding.comparison.cell import Cell, OutputDifference, Unit, find_difference
from draftwise.deciding.comparison.comparisons import Unjudged
from draftwise.deciding.thresholds import Thresholds

__all__ = ["check_outputs", "is_tie"]


_FEWEST_TIES = 10
"""So many examined differences, all ties, speak for the ones that were not examined."""
_CHANCE = 0.01
_LONGER_Z = 3.3
"""Standard errors (p = 0.001): every comparison of a sweep is looked at, and a hint must not come by chance."""


def check_outputs(run: Run, found: Unjudged, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what it means that outputs of the candidate are not the baseline's.

    Above temperature 0 outputs are not compared one by one; their lengths give a hint. Where acceptance is synthetic
    the text is the drafter's, and nothing is compared.
    """
    cell = found.estimates.whole
    if cell.differences is not None:
        views = {
            (each.workload, each.prompt_id): each
            for each in run.divergences
            if (each.candidate, each.condition) == (cell.candidate, cell.condition.label)
        }
        yield from _judge(cell, cell.differences, views, _find_tie_gap(run, thresholds))
    elif cell.condition.temperature > 0 and cell.candidate not in run.plan.synthetic:
        yield from _check_lengths(cell)


def _find_tie_gap(run: Run, thresholds: Thresholds) -> float:
    """Return the gap for the precision of the run; unknown precisions count as bfloat16."""
    return thresholds.tie_gap.get(str(run.context.model.dtype), thresholds.tie_gap["bfloat16"])


def _judge(
    cell: Cell, differences: Sequence[OutputDifference], views: Mapping[Unit, Divergence], tie_gap: float
) -> Iterator[Finding]:
    """Sort differences into ties, real ones and those of which the servers could or did not say anything."""
    ties = [each for each in differences if each.unit in views and is_tie(views[each.unit], tie_gap)]
    unknown = [each for each in differences if each.unit not in views or views[each.unit].gap is None]
    real = [each for each in differences if each not in ties and each not in unknown]
    if unknown and len(ties) >= _FEWEST_TIES and not real:
        ties, unknown = [*ties, *unknown], []
    if unknown and not real and (why := _changes_alike(cell)):
        text = (
            f"{len(unknown)} outputs are none of the baseline's, and the baseline's own change between repetitions "
            f"just as often ({why})"
        )
        yield Finding.info("outputs-waver", f"{text}: batches of other shapes round differently.")
        unknown = []
    if real or unknown:
        yield _describe(cell, [*real, *unknown], views)
    if ties:
        gap = max((views[each.unit].gap or 0.0 for each in ties if each.unit in views), default=0.0)
        text = (
            f"{len(ties)} outputs differ from the baseline's from a position on where both servers hold the two "
            f"tokens for all but as likely as the best (at most {gap:.2g} nats behind; {tie_gap:g} is within rounding)."
        )
        yield Finding.info("numeric-ties", text)


def is_tie(divergence: Divergence, tie_gap: float) -> bool:
    """Return whether the precision of the arithmetic alone can have swapped the two tokens."""
    return divergence.gap is not None and divergence.gap <= tie_gap and divergence.among_best is not False


def _changes_alike(cell: Cell) -> str:
    """Return in numbers that the baseline changes its outputs as often as the candidate does, "" where it does not.

    The last answer of each arm is held against the same earlier ones of the baseline; prompts where just one of the two
    changed would fall to either side with equal chance if the arms were alike (McNemar, exact).
    """
    only_candidate = only_baseline = baseline_changed = 0
    for unit in cell.units:
        *references, last = cell.outputs[cell.baseline, unit]
        if references:
            changed = [_is_new(unit, references, each) for each in (last, cell.outputs[cell.candidate, unit][-1])]
            baseline_changed += changed[0]
            only_baseline += changed[0] and not changed[1]
            only_candidate += changed[1] and not changed[0]
    alike = baseline_changed and _chance_of(only_candidate, only_candidate + only_baseline) > _CHANCE
    return f"{baseline_changed} of {len(cell.units)} prompts" if alike else ""


def _is_new(unit: Unit, references: Sequence[Answer], answer: Answer) -> bool:
    return all(find_difference(unit, reference, answer) is not None for reference in references)


def _chance_of(at_least: int, of: int) -> float:
    """Return the chance of so many heads or more in `of` tosses."""
    return float(sum(comb(of, each) for each in range(at_least, of + 1)) / 2**of)


def _describe(cell: Cell, real: Sequence[OutputDifference], views: Mapping[Unit, Divergence]) -> Finding:
    first = real[0]
    where = "" if first.position is None else f" at output token {first.position}"
    view = views.get(first.unit)
    gap = "not examined" if view is None or view.gap is None else f"the two tokens are {view.gap:.2g} nats apart"
    return Finding.error(
        "outputs-differ",
        f"{len(real)} of {len(cell.units)} outputs differ from the baseline's at temperature 0; first "
        f"{first.unit[1]}{where} ({gap}): {first.excerpt}.",
        fix="Greedy speculation must not change the output: report it to the engine's maintainers.",
    )


def _check_lengths(cell: Cell) -> Iterator[Finding]:
    """Sampled answers differ from arm to arm, but not in length on the whole: else the sampling is another one.

    Sign-flip test over prompts, by its normal limit.
    """

    def lengths(arm: str) -> np.ndarray:
        tokens = ([each.timing.num_tokens for each in cell.outputs[arm, unit]] for unit in cell.units)
        return np.array([sum(each) / len(each) for each in tokens])

    baseline, candidate = lengths(cell.baseline), lengths(cell.candidate)
    longer = candidate - baseline
    spread = float(np.sqrt(np.sum(longer**2)))
    if spread and abs(float(longer.sum())) > _LONGER_Z * spread:
        text = (
            f"its answers are {candidate.sum() / baseline.sum():.2f}x as long as the baseline's over "
            f"{len(cell.units)} prompts, {abs(float(longer.sum())) / spread:.1f} standard errors from equal: "
            "speculation that keeps the model's distribution does not do that"
        )
        fix = "Look for a lossy mode (acceptance thresholds, typical acceptance) or other sampling settings."
        yield Finding.warning("lengths-differ", f"{text}.", fix=fix)
