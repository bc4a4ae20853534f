"""Chooses the unit of answers: tokens as the servers count them, or text if any count is unsound.

A speculating server sends several tokens at once, so a chunk is not a token. If a stream carries neither usage nor
token ids, the server's counters give the tokens of a turn. If they cannot be read, or if two servers count the same
text differently, characters stand for tokens on all arms, and ratios are those of the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, variance

from draftwise.core import Answer, Finding, Run, Timing
from draftwise.core.grouping import group_by
from draftwise.knowledge.messages import fault, note, warning

_FEWEST = 6
"""Number of equal texts needed to compare two servers' counts."""
_ALIKE = 0.01
"""Largest typical difference of counts over equal texts that affects no verdict."""
_ALIKE_ON_AVERAGE, _SURE_Z = 0.03, 4.0
"""The same over all answers' texts, and the number of standard errors beyond chance."""
_WITHOUT_TEXT = 0.1
"""Share of answers without text above which text cannot be the unit."""
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRun:
    """A run whose answers use one unit on all arms."""

    run: Run
    findings: tuple[Finding, ...] = ()


def count_soundly(run: Run) -> CountedRun:
    """Return the run with sound token counts, and findings on how they were obtained."""
    unknown = {each.arm for each in run.answers if each.measured and not each.total_exact and each.error is None}
    if not unknown and (odd := _find_odd(run)) is None:
        return CountedRun(run=run)
    if unknown:
        names = f"streams of {', '.join(sorted(unknown))}"
        counted = _count_by_turn(run)
        odd = None if counted is None else _find_odd(counted)
        if counted is not None and odd is None:
            return CountedRun(run=counted, findings=(note("unit-by-counters", names=names),))
        counters = "no counters do" if odd is None else f"counters tell other numbers of {odd} for the same texts"
        why = f"{names} do not report how many tokens they hold, and {counters}"
    else:
        why = f"{odd} counts other tokens than the baseline for the same texts"
    return _count_by_text(run, why)


def _find_odd(run: Run) -> str | None:
    """Return a candidate that counts other tokens than the baseline, in equal texts or, where few are equal, in the
    texts of all its answers; None where none does."""
    baseline = run.plan.arms[0].name
    whole = [each for each in run.answers if each.measured and each.error is None and each.text and each.timing.chunks]
    theirs = {
        (each.workload, each.prompt_id, each.text): each.timing.num_tokens for each in whole if each.arm == baseline
    }
    ratios: dict[str, list[float]] = {}
    densities: dict[str, list[float]] = {}
    for each in whole:
        tokens, before = each.timing.num_tokens, theirs.get((each.workload, each.prompt_id, each.text))
        densities.setdefault(each.arm, []).append(math.log(len(each.text) / tokens))
        if each.arm != baseline and before:
            ratios.setdefault(each.arm, []).append(tokens / before)
    for arm, mine in densities.items():
        alike = ratios.get(arm, [])
        if arm != baseline and (
            abs(median(alike) - 1) > _ALIKE if len(alike) >= _FEWEST else _is_denser(mine, densities.get(baseline, []))
        ):
            return arm
    return None


def _is_denser(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether the logarithms of characters per token of two servers differ by more than chance explains."""
    if min(len(ours), len(theirs)) < _FEWEST:
        return False
    error = math.sqrt(variance(ours) / len(ours) + variance(theirs) / len(theirs))
    return abs(fmean(ours) - fmean(theirs)) > max(_ALIKE_ON_AVERAGE, _SURE_Z * error)


def _count_by_turn(run: Run) -> Run | None:
    """Return the run with the tokens that counters tell of turns of one answer; None where they do not tell all."""
    turns = {turn.turn: turn for turn in run.turns}
    mine = group_by(lambda answer: answer.turn, run.answers)
    counted: list[Answer] = []
    for answer in run.answers:
        if answer.total_exact or answer.error is not None:
            counted.append(answer)
            continue
        total = turns[answer.turn].counters.generation_tokens if len(mine[answer.turn]) == 1 else None
        if not total:
            return None
        counted.append(replace(answer, timing=_spread(answer.timing, total)))
    return replace(run, answers=tuple(counted))


def _count_by_text(run: Run, why: str) -> CountedRun:
    """Return the run measured by its texts, or as it is with an error where texts are missing."""
    whole = [each for each in run.answers if each.measured and each.error is None]
    if sum(not each.text for each in whole) > _WITHOUT_TEXT * len(whole):
        return CountedRun(run=run, findings=(fault("unit-unsound", why=why),))
    density = _find_density(run)
    answers = (
        replace(each, timing=_spread(each.timing, max(1, round(len(each.text) / density)))) if each.text else each
        for each in run.answers
    )
    return CountedRun(
        run=replace(run, answers=tuple(answers)), findings=(warning("unit-by-text", why=why, density=density),)
    )


def _find_density(run: Run) -> float:
    """Return the characters of a token, over all arms whose counters tell their tokens."""
    tokens = {turn.turn: turn.counters.generation_tokens for turn in run.turns}
    known = sum(each for each in tokens.values() if each)
    chars = sum(len(each.text) for each in run.answers if tokens.get(each.turn))
    return chars / known if known and chars else _CHARS_PER_TOKEN


def _spread(timing: Timing, total: int) -> Timing:
    """Return the timing of an answer with this number of tokens, spread evenly over the chunks that arrived."""
    times: Sequence[float] = [time for time, _ in timing.chunks]
    if not times:
        return timing
    ends = [round(total * (place + 1) / len(times)) for place in range(len(times))]
    counts = [end - begin for begin, end in zip((0, *ends), ends, strict=False)]
    return replace(timing, chunks=tuple(zip(times, counts, strict=True)))
