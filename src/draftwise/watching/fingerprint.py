"""The probe's fingerprint: how many steps a server takes for the same prompts. Also records it as a baseline.

As long as engine and drafter stay the same, greedy answers to fixed prompts take the same steps under any traffic.
Rounding may depend on the batch, so some prompts change without a cause. Repeats measure how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import combinations
from math import comb, exp, log, sqrt
from statistics import fmean, stdev

from draftwise.backends.backend import ServerProbe
from draftwise.core import NO_PROBE, Answer, Baseline, ClosedLoop, Condition, Expected, Finding, ProbeAnswer, Window
from draftwise.core.grouping import group_by
from draftwise.knowledge.messages import refusal, text_of

_SURE = 0.01
"""Largest probability that such changes occur without a cause."""
_LEAST_NULL = 0.05
"""Assumed minimum share of prompts that change without a cause: a few dozen unchanged prompts cannot exclude less."""
_SURE_ERRORS = 2.33
"""Number of standard errors for the same chance, one-sided."""
_LEAST_CHANGE = log(0.95)
"""Log change of tokens per step that counts. With 48 prompts, it detects a fall of 10 % in 98 % of cases."""
_FEWEST = 8
"""Minimum number of comparable prompts for a decision."""
_TOLERANCE = 0.02
"""Largest difference between chunks and steps counted by the server, as a share of the whole probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Differences between a probe's answers and the baseline's."""

    num_prompts: int
    """Number of prompts in both probes."""
    num_comparable: int
    """Prompts whose answer equals one in the baseline. Only their steps are comparable."""
    num_changed: int
    """Comparable prompts with a number of steps that no repeat of the baseline had."""
    null: float
    """Share of prompts that change without a cause."""
    change: float | None
    """Mean log ratio of tokens per step to the baseline's, over comparable prompts; None with too few."""
    error: float | None
    """Standard error of `change`."""
    alone: bool | None = None
    """Whether the server had no other requests, which could have stopped drafting; None if unknown."""

    @property
    def differs(self) -> bool | None:
        """Whether the engine or drafter has changed; None with too few comparable prompts."""
        if self.num_comparable < _FEWEST:
            return None
        return self._chance() < _SURE or self._has_fallen

    @property
    def summary(self) -> str:
        """Summary of the result, as a clause."""
        told = f"{self.num_changed} of {self.num_comparable} prompts take other steps"
        told += f" ({round(self.null * self.num_comparable)} without a cause)"
        if self.change is not None:
            told += f", tokens per step {100 * (exp(self.change) - 1):+.0f} %"
        if others := self.num_prompts - self.num_comparable:
            told += f"; {others} have another text"
        return told

    @property
    def _has_fallen(self) -> bool:
        if self.change is None or self.error is None:
            return False
        return self.change < _LEAST_CHANGE and self.change < -_SURE_ERRORS * self.error

    def _chance(self) -> float:
        """Return the probability that as many prompts change without a cause (binomial)."""
        share, count = max(self.null, _LEAST_NULL), self.num_comparable
        few = (comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(self.num_changed))
        return 1.0 - sum(few)


def take_answers(probed: ServerProbe) -> tuple[ProbeAnswer, ...]:
    """Return the part of a probe's answers to store; empty if their steps cannot be counted.

    From 0.29 on, vLLM reports the steps of a request (--per-request-spec-decode-metrics). Otherwise, a chunk counts as
    a step, unless --stream-interval joins several: chunks then disagree with the server's counters.
    """
    counted = [(answer, _count_steps(answer)) for answer in probed.answers]
    if any(steps is None for _, steps in counted) or _misses_counters(probed, sum(steps or 0 for _, steps in counted)):
        return ()
    return tuple(
        ProbeAnswer(
            prompt_id=f"{answer.workload}/{answer.prompt_id}",
            num_tokens=answer.timing.num_tokens,
            num_steps=steps,
            text_sha256=sha256(answer.text.encode()).hexdigest(),
        )
        for answer, steps in counted
        if steps is not None
    )


def compare_probe(now: Sequence[ProbeAnswer], baseline: Sequence[ProbeAnswer], null: float | None) -> Fingerprint:
    """Compare a probe with the baseline's.

    Args:
        now: one answer per prompt.
        baseline: several repeats per prompt.
        null: share of prompts that change without a cause. None: computed from the repeats.
    """
    known = _by_prompt(baseline)
    pairs = [(answer, known[answer.prompt_id]) for answer in now if answer.prompt_id in known]
    alike = [(answer, [each for each in others if each.text_sha256 == answer.text_sha256]) for answer, others in pairs]
    comparable = [(answer, others) for answer, others in alike if others]
    changed = [answer for answer, others in comparable if answer.num_steps not in {each.num_steps for each in others}]
    changes = [_compare_pace(answer, others) for answer, others in comparable]
    return Fingerprint(
        num_prompts=len(pairs),
        num_comparable=len(comparable),
        num_changed=len(changed),
        null=_resolve_null(null, baseline),
        change=fmean(changes) if len(changes) >= _FEWEST else None,
        error=stdev(changes) / sqrt(len(changes)) if len(changes) >= _FEWEST else None,
    )


def find_null(repeats: Sequence[Sequence[ProbeAnswer]]) -> float | None:
    """Return the largest share of prompts whose steps differ between two repeats; None with fewer than two repeats.

    With three or more repeats, it stands in for the 95 % quantile, which needs more pairs.
    """
    pairs = [_share_changed(a, b) for a, b in combinations(repeats, 2)]
    return max(pairs, default=None)


def judge_probe(probed: ServerProbe, baseline: Baseline, *, where: str) -> tuple[Finding, Fingerprint | None]:
    """Compare a probe with the baseline's; return the finding, and the fingerprint if one can be computed."""
    answers = take_answers(probed)
    found = compare_probe(answers, baseline.probe, baseline.probe_null) if answers else None
    others = _count_others(probed)
    found = found and replace(found, alone=None if others is None else not others)
    limits = " ".join(_list_limits(probed, answers))
    if found is None or found.differs is None:
        told = (
            ""
            if found is None
            else (f"Only {found.num_comparable} of {found.num_prompts} prompts have the same text as before. ")
        )
        text = f"Cannot tell whether engine and drafter have changed. {told}{limits}".rstrip()
        return Finding.warning("probe-undecided", text, where=where), found
    if found.differs:
        text = f"The engine or the drafter has changed: {found.summary}. {limits}".rstrip()
        fix = "Compare release, image and weight checksums with the baseline's. Restart one replica."
        return Finding.error("probe-differs", text, where=where, fix=fix), found
    text = f"Engine and drafter are unchanged: {found.summary}. {limits}".rstrip()
    return Finding.info("probe-same", text, where=where), found


def _list_limits(probed: ServerProbe, answers: Sequence[ProbeAnswer]) -> Iterator[str]:
    """Yield what limits what a probe tells, a sentence each."""
    if not answers:
        yield text_of("steps-not-counted")
    if others := _count_others(probed):
        yield f"Other clients received {others} tokens meanwhile. In a fuller batch, rounding may differ."


def _count_others(probed: ServerProbe) -> int | None:
    """Return the tokens that others were sent while the server was probed."""
    generated = probed.growth.generation_tokens
    return None if generated is None else max(0, generated - probed.num_tokens)


def _count_steps(answer: Answer) -> int | None:
    """Return the decoding steps of an answer; None where nothing tells them."""
    tokens = answer.timing.num_tokens
    if not tokens:
        return None
    if answer.acceptance:
        emitted = sum(count * (accepted + 1) for accepted, count in enumerate(answer.acceptance))
        return min(tokens, max(1, sum(answer.acceptance) + max(0, tokens - emitted)))
    return len(answer.timing.chunks) if answer.counts_exact else None


def _misses_counters(probed: ServerProbe, steps: int) -> bool:
    """Return whether the steps counted here are not those of the server, where it served nobody else meanwhile."""
    growth = probed.growth
    if growth.generation_tokens is None or growth.generation_tokens != probed.num_tokens:
        return False
    counted = growth.generation_tokens - growth.spec.num_accepted_tokens
    return abs(counted - steps) > max(_TOLERANCE * counted, len(probed.answers))


def _by_prompt(answers: Iterable[ProbeAnswer]) -> Mapping[str, list[ProbeAnswer]]:
    return group_by(lambda answer: answer.prompt_id, answers)


def _compare_pace(answer: ProbeAnswer, others: Sequence[ProbeAnswer]) -> float:
    """Return the logarithm of tokens per step over the mean of the repeats; the first token is no decoding step."""
    return _pace(answer) - fmean(map(_pace, others))


def _pace(answer: ProbeAnswer) -> float:
    return log(max(1, answer.num_tokens - 1) / max(1, answer.num_steps - 1))


def _share_changed(a: Sequence[ProbeAnswer], b: Sequence[ProbeAnswer]) -> float:
    """Return the share of prompts with equal texts whose steps differ; 1 where no text is equal."""
    known = {answer.prompt_id: answer for answer in b}
    pairs = [(answer, known[answer.prompt_id]) for answer in a if answer.prompt_id in known]
    alike = [(x, y) for x, y in pairs if x.text_sha256 == y.text_sha256]
    return sum(x.num_steps != y.num_steps for x, y in alike) / len(alike) if alike else 1.0


def _resolve_null(null: float | None, baseline: Sequence[ProbeAnswer]) -> float:
    """Return the null as measured, else from the baseline's repeats; after one repeat, any prompt might change."""
    if null is not None:
        return null
    by_prompt = _by_prompt(baseline)
    most = max(map(len, by_prompt.values()), default=0)
    found = find_null([[each[index] for each in by_prompt.values() if index < len(each)] for index in range(most)])
    return 1.0 if found is None else found


AS_SERVED = "as served"
"""Workload name for production traffic."""
_NO_RUN = "No run has measured this service. Its break-even, its crossover and its step times are unknown."
FEWEST_DRAFTS = 1000
"""Minimum number of drafts for storing rates: two digits are then reliable."""


def record_baseline(
    window: Window | None, repeats: Sequence[Sequence[ProbeAnswer]], known: Baseline | None = None
) -> Baseline:
    """Return a baseline from observations.

    Args:
        window: window of the service. Stored if it has enough drafts, and used as the expectation if none is known.
        repeats: repeats of the probe, each with the answers to all prompts.
        known: baseline to extend; a run's measurements stay.

    Raises:
        InvalidSetup: the steps of the probe's answers cannot be counted.
    """
    if not all(repeats):
        raise refusal("probe-undecided")
    expected = _expect(window)
    base = known or Baseline(setup_sha256="", missing=tuple(_list_missing(expected)), expected=expected)
    answers = tuple(answer for each in repeats for answer in each)
    missing = tuple(each for each in base.missing if each != NO_PROBE)
    seen = None if window is None or expected is None else replace(window, instance="")
    return replace(base, probe=answers, probe_null=find_null(repeats), missing=missing, seen=seen or base.seen)


def _expect(window: Window | None) -> Expected | None:
    if window is None or window.counters.spec.num_drafts < FEWEST_DRAFTS:
        return None
    load = ClosedLoop(concurrency=max(1, round(window.batch or 1)))
    return Expected(workload=AS_SERVED, condition=Condition(load=load), counters=window.counters)


def _list_missing(expected: Expected | None) -> Iterator[str]:
    yield _NO_RUN
    if expected is None:
        yield (f"The window had fewer than {FEWEST_DRAFTS} drafts, so the expected values of the traffic are unknown.")
