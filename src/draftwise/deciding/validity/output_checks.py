"""Checks whether a candidate changes the outputs, and describes the baseline's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from draftwise.core import Answer, Condition, Divergence, Finding, Run
from draftwise.deciding.comparison.cell import Cell, OutputDifference, Unit, find_difference
from draftwise.deciding.comparison.comparisons import ComparisonNumbers
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import fault, note, warning
from draftwise.statistics import find_rounding_scale, is_beyond_rounding

_EARLY_TOKENS, _EARLY_CHARS = 16, 64
"""A difference before this many tokens, or characters, is early: rounding rarely causes one."""
_EARLY_SHARE, _EARLY_CHANCE = 0.25, 1e-3
"""Share of outputs that may differ early due to rounding, and the probability below which more is not rounding."""
_CLOSE, _FAR, _FAR_SHARE = 2.0, 3.0, 0.1
"""Multiple of the rounding scale within which two tokens are nearly equal: such outputs may differ anywhere. Rounding
puts at most this share of the differences beyond the second: 0.001, and 0.07 if the true scale is twice as large."""
_LONGER_Z = 3.3
"""Number of standard errors (p = 0.001): a sweep makes many comparisons, and none may give a hint by chance."""


def check_outputs(run: Run, found: ComparisonNumbers, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield findings on outputs that differ from the baseline's.

    Above temperature 0, the check compares greedy answers outside the turns, and output lengths. With synthetic
    acceptance, the text is the drafter's, and nothing is compared.
    """
    cell, scale = found.estimates.whole, find_rounding(run, thresholds)
    if cell.differences is not None:
        views = {
            (each.workload, each.prompt_id): each
            for each in run.divergences
            if (each.candidate, each.condition) == (cell.candidate, cell.condition.label)
        }
        yield from _judge(cell, cell.differences, views, scale)
        yield from _check_lengths(cell)
    elif cell.condition.temperature > 0 and cell.candidate not in run.plan.synthetic:
        yield from _check_probes(run, cell, scale)
        yield from _check_lengths(cell)


def find_rounding(run: Run, thresholds: Thresholds) -> float:
    """Return the scale of rounding in this run's logits (nats), from plain decoding compared with itself."""
    prior, step = thresholds.rounding.get(str(run.context.model.dtype), thresholds.rounding["bfloat16"])
    baseline = run.plan.arms[0].name
    gaps = [each.gap for each in run.divergences if each.candidate == baseline and each.gap is not None]
    gaps += [each.gap for each in run.probes if each.arm == baseline and each.gap is not None]
    return find_rounding_scale(gaps, prior, step)


def _judge(
    cell: Cell, differences: Sequence[OutputDifference], views: Mapping[Unit, Divergence], scale: float
) -> Iterator[Finding]:
    """Sort differences into rounding, real ones and those of which the servers could or did not say anything."""
    ties = [each for each in differences if each.unit in views and is_tie(views[each.unit], scale)]
    real = [each for each in differences if each.unit in views and _is_real(views[each.unit], scale)]
    # One that was not asked again may be rounding (in up to 2 % of runs), several are not.
    unsure, real = (real, []) if len(real) == 1 and views[real[0].unit].again is None else ([], real)
    once = [each for each in differences if each.unit in views and views[each.unit].again is False]
    unknown = [each for each in differences if each not in ties and each not in real and each not in once]
    apart = [each for each in ties if is_apart(views[each.unit], scale)]
    early = [each for each in (*unknown, *apart) if is_early(each)]
    far = [each for each in ties if is_apart(views[each.unit], scale, _FAR)]
    far = far if is_too_often(len(far), len(ties), _FAR_SHARE) else []
    if real or far or is_too_often(len(early), len(cell.units)):
        yield _describe(cell, real or far or early, views)
        if 2 * len(parted := [*filter(is_early, real), *early]) > len(cell.units):
            yield fault(
                "other-model", case="early", parted=len(parted), count=len(cell.units), early_tokens=_EARLY_TOKENS
            )
    elif unsure:
        gap = views[unsure[0].unit].gap or 0.0
        yield fault("outputs-unexamined", case="again", count=len(cell.units), gap=gap, scale=scale)
    elif unknown:
        yield warning("outputs-unexamined", unknown=len(unknown), count=len(cell.units))
    if once:
        yield warning("outputs-differed-once", count=len(once))
    if ties:
        gap = max(views[each.unit].gap or 0.0 for each in ties)
        yield note("numeric-ties", ties=len(ties), gap=gap, scale=scale)


def is_tie(divergence: Divergence, scale: float) -> bool:
    """Return whether rounding alone can swap the two tokens."""
    known = divergence.gap is not None and divergence.among_best is not False
    return known and not is_beyond_rounding(divergence.gap or 0.0, scale)


def _is_real(divergence: Divergence, scale: float) -> bool:
    return divergence.again is not False and is_flagged(divergence, scale)


def is_flagged(divergence: Divergence, scale: float) -> bool:
    """Return whether a difference is more than rounding, provided that it recurs on a second request."""
    return divergence.gap is not None and is_beyond_rounding(divergence.gap, scale)


def is_apart(divergence: Divergence, scale: float, times: float = _CLOSE) -> bool:
    """Return whether rounding rarely swaps two tokens so far apart. If most outputs differ so, the model is another."""
    return (divergence.gap or 0.0) > times * scale


def is_early(difference: OutputDifference) -> bool:
    """Return whether outputs diverge earlier than rounding usually causes."""
    if difference.position is not None:
        return difference.position < _EARLY_TOKENS
    return difference.shared_chars < _EARLY_CHARS


def is_too_often(count: int, of: int, share: float = _EARLY_SHARE) -> bool:
    """Return whether more outputs diverge early, or far, than rounding explains (exact binomial test)."""
    chance = sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count, of + 1))
    return count > 0 and chance < _EARLY_CHANCE


def _describe(cell: Cell, real: Sequence[OutputDifference], views: Mapping[Unit, Divergence]) -> Finding:
    first = real[0]
    where = "" if first.position is None else f" at output token {first.position}"
    view = views.get(first.unit)
    gap = "not examined" if view is None or view.gap is None else f"the two tokens are {view.gap:.2g} nats apart"
    return Finding.error(
        "outputs-differ",
        f"{len(real)} of {len(cell.units)} outputs differ from the baseline's at temperature 0 by more than "
        f"rounding. The first is {first.unit[1]}{where} ({gap}): {first.excerpt}.",
        fix="Greedy speculation must not change the output. Report it to the engine's maintainers.",
    )


def _check_probes(run: Run, cell: Cell, scale: float) -> Iterator[Finding]:
    """Yield what greedy answers outside of the turns say of the candidate's model, or that nothing does."""
    mine = [each for each in run.probes if each.arm == cell.candidate]
    if not mine:
        if not any(each.temperature == 0 for each in run.conditions):
            text = "its outputs were not compared with the baseline's: above temperature 0, outputs always differ"
            yield warning("outputs-not-compared", text=text)
        return
    real = [each for each in mine if each.gap is not None and is_beyond_rounding(each.gap, scale)]
    early = [
        each
        for each in mine
        if not each.is_equal and each.shared < _EARLY_TOKENS and (each.gap is None or each.gap > _CLOSE * scale)
    ]
    if real or is_too_often(len(early), len(mine)):
        yield fault("other-model", case="anywhere", differing=len(real or early), answers=len(mine))


def _check_lengths(cell: Cell) -> Iterator[Finding]:
    """Answers that differ are not longer or shorter on the whole: else the sampling is another one, or one side cuts.

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
            f"{len(cell.units)} prompts, {abs(float(longer.sum())) / spread:.1f} standard errors from equal. "
            "Speculation that keeps the model's distribution does not do that"
        )
        fix = "Look for a lossy mode (acceptance thresholds, typical acceptance) or different sampling settings."
        yield Finding.warning("lengths-differ", f"{text}.", fix=fix)


MAX_PERIOD = 64
MIN_REPEATS = 3
MIN_LOOP_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """How repetitive the baseline's outputs of a workload are."""

    workload: str
    num_outputs: int
    loop_share: float
    distinct_4grams: float
    """Mean over outputs: distinct 4-grams over all 4-grams."""


def check_texts(
    run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds
) -> tuple[list[TextQuality], list[Finding]]:
    """Return the quality of the baseline's outputs, and findings on loops, cut ends and inconsistency."""
    quality = _assess_text(run, of_baseline)
    return quality, [
        *_find_cut(run, of_baseline, thresholds),
        *_find_loops(quality, thresholds),
        *(each for condition in run.conditions for each in _find_unstable(of_baseline, condition)),
    ]


def _find_unstable(of_baseline: Sequence[Answer], condition: Condition) -> Iterator[Finding]:
    if condition.temperature > 0:
        return
    first: dict[Unit, Answer] = {}
    unstable = set()
    for answer in of_baseline:
        if answer.condition == condition.label:
            unit = (answer.workload, answer.prompt_id)
            if find_difference(unit, first.setdefault(unit, answer), answer) is not None:
                unstable.add(unit)
    if unstable:
        text = f"the baseline itself answers {len(unstable)} of {len(first)} prompts differently between repetitions"
        if condition.concurrency == 1:
            yield Finding.warning("plain-unstable", f"{text}.", where=condition.label)
        else:
            why = "batches change between repetitions, and rounding with them. Candidates are judged relative to that"
            yield Finding.info("plain-unstable", f"{text}: {why}.", where=condition.label)


def _assess_text(run: Run, of_baseline: Sequence[Answer]) -> list[TextQuality]:
    """Return the text quality of the baseline's first answers, workload by workload."""
    rows = []
    for workload in run.plan.workloads:
        first: dict[str, Answer] = {}
        for answer in of_baseline:
            if answer.workload == workload.name:
                first.setdefault(answer.prompt_id, answer)
        outputs = [_list_tokens(answer) for answer in first.values()]
        if outputs:
            rows.append(
                TextQuality(
                    workload=workload.name,
                    num_outputs=len(outputs),
                    loop_share=sum(find_loop(tokens) is not None for tokens in outputs) / len(outputs),
                    distinct_4grams=sum(map(distinct_ngram_ratio, outputs)) / len(outputs),
                )
            )
    return rows


def _list_tokens(answer: Answer) -> list[int]:
    """Return an output without its end token; characters stand in where the server gives no ids."""
    if not answer.token_ids:
        return list(map(ord, answer.text))
    return list(answer.token_ids[: -1 if answer.finish_reason == "stop" else None])


def _find_cut(run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds) -> Iterator[Finding]:
    forced = {(w.name, prompt.id) for w in run.plan.workloads for prompt in w.prompts if prompt.ignore_eos}
    free = [each for each in of_baseline if (each.workload, each.prompt_id) not in forced]
    for workload in run.plan.workloads:
        reasons = [each.finish_reason for each in free if each.workload == workload.name]
        cut = reasons.count("length")
        if reasons and cut > thresholds.cut_outputs * len(reasons):
            yield note("outputs-cut", cut=cut, outputs=len(reasons), name=workload.name)


def _find_loops(assessed: Iterable[TextQuality], thresholds: Thresholds) -> Iterator[Finding]:
    for quality in assessed:
        if quality.loop_share > thresholds.loop_share:
            text = (
                f"{quality.loop_share:.0%} of the {quality.workload} outputs end in a loop (over "
                f"{thresholds.loop_share:.0%}): lookup methods look better here than on text that does not repeat."
            )
            yield Finding.warning("outputs-loop", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A periodic tail: the last `length` tokens, from `start` on, repeat with `period`."""

    start: int
    period: int
    length: int


def find_loop(tokens: Sequence[int], *, min_tokens: int = MIN_LOOP_TOKENS) -> Loop | None:
    """Return the loop that `tokens` ends in, or None.

    The tail of a sequence is a loop of period p when its last L tokens satisfy
    tokens[i] == tokens[i + p] throughout, with L >= MIN_REPEATS * p and L >= min_tokens; the
    last repeat may be cut off. The smallest such p from 1 to `MAX_PERIOD` is returned, with
    the largest L for it. Tokens that end a sequence (EOS, padding) are the caller's to strip.
    """
    size = len(tokens)
    for period in range(1, min(MAX_PERIOD, size // MIN_REPEATS) + 1):
        start = size - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        length = size - start
        if length >= MIN_REPEATS * period and length >= min_tokens:
            return Loop(start=start, period=period, length=length)
    return None


def distinct_ngram_ratio(tokens: Sequence[int], n: int = 4) -> float:
    """Return the distinct n-grams of `tokens` over all its n-grams, in (0, 1].

    1.0 means that no n-gram repeats, or that the sequence is too short to hold one.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    total = len(tokens) - n + 1
    if total < 1:
        return 1.0
    return len({tuple(tokens[i : i + n]) for i in range(total)}) / total
