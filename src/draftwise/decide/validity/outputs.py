"""Whether candidates change the outputs, beside how far plain's own change from pass to pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb

import numpy as np

from draftwise.core import Answer, Condition, Divergence, Finding, Run
from draftwise.decide.comparison.cell import Cell, Unit
from draftwise.decide.comparison.differences import Difference, find_difference, find_differences, is_tie
from draftwise.decide.validity.finding import error, info, warning
from draftwise.decide.validity.readings import plain_answers

__all__ = ["check_outputs", "check_stability"]

_FEWEST_TIES = 10
"""So many examined differences, all ties, speak for the ones that were not examined."""
_CHANCE = 0.01
_LONGER_Z = 3.3
"""Standard errors (p = 0.001): every comparison of a sweep is looked at, and a hint must not come by chance."""


def check_outputs(run: Run, cell: Cell, tie_gap: float) -> tuple[tuple[int, int] | None, list[Finding]]:
    """Return how many prompts got the plain output (of how many), and what the differences mean.

    Above temperature 0 outputs are not compared one by one; then the first is None, and the lengths give a hint. Where
    the engine draws acceptance the text is the drafter's, and nothing is compared.
    """
    if any(arm.has_synthetic_acceptance for arm in run.plan.arms if arm.name == cell.candidate):
        return None, []
    if cell.condition.temperature > 0:
        return None, list(_check_lengths(cell))
    differences = find_differences(cell)
    label = cell.condition.label
    views = {
        (each.workload, each.prompt_id): each
        for each in run.divergences
        if (each.candidate, each.condition) == (cell.candidate, label)
    }
    findings = list(_judge(cell, differences, views, tie_gap))
    return (len(cell.units) - len(differences), len(cell.units)), findings


def _judge(
    cell: Cell, differences: Sequence[Difference], views: Mapping[Unit, Divergence], tie_gap: float
) -> Iterator[Finding]:
    """Sort differences into ties, real ones and those of which the servers could or did not say anything."""
    ties = [each for each in differences if each.unit in views and is_tie(views[each.unit], tie_gap)]
    unknown = [each for each in differences if each.unit not in views or views[each.unit].gap is None]
    real = [each for each in differences if each not in ties and each not in unknown]
    if unknown and len(ties) >= _FEWEST_TIES and not real:
        ties, unknown = [*ties, *unknown], []
    if unknown and not real and (why := _wavers_alike(cell)):
        text = f"{len(unknown)} outputs are none of plain's, and plain's change from pass to pass just as often ({why})"
        yield info("outputs-waver", f"{text}: batches of other shapes round differently.")
        unknown = []
    if real or unknown:
        yield _describe(cell, [*real, *unknown], views)
    if ties:
        gap = max((views[each.unit].gap or 0.0 for each in ties if each.unit in views), default=0.0)
        text = f"{len(ties)} outputs part from plain's where both servers hold the two best tokens for equal (at most "
        yield info("numeric-ties", f"{text}{gap:.2g} nats apart, {tie_gap:g} is within rounding).")


def _wavers_alike(cell: Cell) -> str:
    """Return in numbers that plain changes its own outputs as often as the candidate does, "" where it does not.

    The last answer of each arm is held against the same earlier answers of plain; prompts at which just one of the two
    changed would fall to either side with equal chance if the arms were alike (McNemar, exact).
    """
    only_candidate = only_plain = plain_changed = 0
    for unit in cell.units:
        *references, last = cell.outputs(cell.plain, unit)
        if references:
            changed = [_is_new(unit, references, each) for each in (last, cell.outputs(cell.candidate, unit)[-1])]
            plain_changed += changed[0]
            only_plain += changed[0] and not changed[1]
            only_candidate += changed[1] and not changed[0]
    alike = plain_changed and _chance_of(only_candidate, only_candidate + only_plain) > _CHANCE
    return f"{plain_changed} of {len(cell.units)} prompts" if alike else ""


def _is_new(unit: Unit, references: Sequence[Answer], answer: Answer) -> bool:
    return all(find_difference(unit, reference, answer) is not None for reference in references)


def _chance_of(at_least: int, of: int) -> float:
    """Return the chance of so many heads or more in `of` tosses."""
    return float(sum(comb(of, each) for each in range(at_least, of + 1)) / 2**of)


def _describe(cell: Cell, real: Sequence[Difference], views: Mapping[Unit, Divergence]) -> Finding:
    first = real[0]
    where = "" if first.position is None else f" at output token {first.position}"
    view = views.get(first.unit)
    gap = "not examined" if view is None or view.gap is None else f"the best two tokens are {view.gap:.2g} nats apart"
    return error(
        "outputs-differ",
        f"{len(real)} of {len(cell.units)} outputs differ from plain's at temperature 0; first {first.unit[1]}{where} "
        f"({gap}): {first.excerpt}.",
        "Greedy speculation must not change the output: report it to the engine's maintainers.",
    )


def _check_lengths(cell: Cell) -> Iterator[Finding]:
    """Sampled answers differ from arm to arm, but not in length on the whole: else the sampling is another one.

    Sign-flip test over prompts, by its normal limit.
    """

    def lengths(arm: str) -> np.ndarray:
        tokens = ([each.timing.num_tokens for each in cell.outputs(arm, unit)] for unit in cell.units)
        return np.array([sum(each) / len(each) for each in tokens])

    plain, candidate = lengths(cell.plain), lengths(cell.candidate)
    longer = candidate - plain
    spread = float(np.sqrt(np.sum(longer**2)))
    if spread and abs(float(longer.sum())) > _LONGER_Z * spread:
        text = (
            f"its answers are {candidate.sum() / plain.sum():.2f}x as long as plain's over {len(cell.units)} prompts, "
            f"{abs(float(longer.sum())) / spread:.1f} standard errors from equal: speculation that keeps the model's "
            "distribution does not do that"
        )
        fix = "Look for a lossy mode (acceptance thresholds, typical acceptance) or other sampling settings."
        yield warning("lengths-differ", f"{text}.", fix)


def check_stability(run: Run) -> Iterator[Finding]:
    """Yield where the plain arm does not always give the same greedy answer: the base for what candidates change."""
    for condition in run.conditions:
        yield from _unstable(run, condition)


def _unstable(run: Run, condition: Condition) -> Iterator[Finding]:
    if condition.temperature > 0:
        return
    first: dict[Unit, Answer] = {}
    unstable = set()
    for answer in plain_answers(run):
        if answer.condition == condition.label:
            unit = (answer.workload, answer.prompt_id)
            if find_difference(unit, first.setdefault(unit, answer), answer) is not None:
                unstable.add(unit)
    if unstable:
        text = f"the plain server itself answers {len(unstable)} of {len(first)} prompts differently from pass to pass"
        if condition.concurrency == 1:
            yield warning("plain-unstable", f"{text}.", where=condition.label)
        else:
            why = "batches change from pass to pass, and with them the rounding; candidates are held against that"
            yield info("plain-unstable", f"{text}: {why}.", where=condition.label)
