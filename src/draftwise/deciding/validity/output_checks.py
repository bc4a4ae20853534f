"""Whether a candidate changes the outputs, and what the baseline's outputs are like."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from draftwise.core import Answer, Condition, Divergence, Finding, Run
from draftwise.deciding.comparison.cell import Cell, OutputDifference, Unit, find_difference
from draftwise.deciding.comparison.comparisons import ComparisonNumbers
from draftwise.deciding.thresholds import Thresholds

__all__ = ["Loop", "TextQuality", "check_outputs", "check_texts", "distinct_ngram_ratio", "find_loop", "is_tie"]

_FEWEST_TIES = 10
"""So many examined differences, all ties, speak for the ones that were not examined."""
_CHANCE = 0.01
_LONGER_Z = 3.3
"""Standard errors (p = 0.001): every comparison of a sweep is looked at, and a hint must not come by chance."""


def check_outputs(run: Run, found: ComparisonNumbers, thresholds: Thresholds) -> Iterator[Finding]:
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


MAX_PERIOD = 64
MIN_REPEATS = 3
MIN_LOOP_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """How far the baseline's outputs of a workload repeat themselves."""

    workload: str
    num_outputs: int
    loop_share: float
    distinct_4grams: float
    """Mean over outputs of distinct 4-grams over all 4-grams."""


def check_texts(
    run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds
) -> tuple[list[TextQuality], list[Finding]]:
    """Return what the baseline's outputs are like, and where they are unlike real traffic, or unlike themselves."""
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
            why = "batches change between repetitions, and with them the rounding; candidates are held against that"
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
            text = f"{cut} of {len(reasons)} {workload.name} outputs were cut off at max_tokens"
            why = "how long real answers are, and how well their endings are drafted, is not measured"
            yield Finding.info("outputs-cut", f"{text}: {why}.", fix="Raise max_tokens.")


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
    """A periodic tail: `length` tokens from `start` to the end repeat with `period`."""

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

    1.0 means that no n-gram occurs twice; a sequence too short to hold one gives 1.0 too.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    total = len(tokens) - n + 1
    if total < 1:
        return 1.0
    return len({tuple(tokens[i : i + n]) for i in range(total)}) / total
