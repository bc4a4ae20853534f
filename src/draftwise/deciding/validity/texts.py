"""What the baseline's outputs are like: whether they end by themselves, loop, and come out the same again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import Answer, Condition, Finding, Run
from draftwise.deciding.comparison.cell import Unit, find_difference
from draftwise.deciding.thresholds import Thresholds

__all__ = ["Loop", "TextQuality", "check_texts", "distinct_ngram_ratio", "find_loop"]

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
