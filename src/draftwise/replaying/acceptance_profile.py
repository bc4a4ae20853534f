"""Turns anchors into an acceptance profile for every k, over all requests and by group.

Shape letters: R requests, S steps, K draft tokens.

Serving does not see the mean over all positions: it enters a long match at its start, never inside. That mean is 6 to
196 % too high on public data (SpecDecode-Bench, arXiv 2601.11580).

Shape letters: R requests, N answer tokens of all requests, K draft tokens, S steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.core import Acceptance, AcceptanceAtK, Exactness, Finding, Interval
from draftwise.knowledge.messages import warning
from draftwise.replaying.anchors import Anchors, Drafts, Ints
from draftwise.statistics.ratios import find_variance_share, ratio_of_totals

_TAIL = 0.01
"""An interval should not depend on this small a share of the requests."""
_SHARE = 0.25
"""Threshold share of the variance. In a normal distribution, the largest 1 % of deviations holds a twelfth."""
_PERCENTILES = (10, 50, 90)


def summarize(anchors: Anchors, ks: Sequence[int], *, limited: bool = True) -> Iterator[Acceptance]:
    """Yield the acceptance over all requests, then for each group.

    Args:
        anchors: anchors of one candidate at one temperature.
        ks: draft lengths to report.
        limited: see `walk`.
    """
    walks = [walk(anchors, k, limited=limited) for k in ks]
    groups = sorted({group for group in anchors.groups if group is not None})
    for group in (None, *groups):
        kept_R = np.array([group in (None, each) for each in anchors.groups])
        by_k = {each.k: found for each in walks if (found := _at_k(anchors, each, kept_R)) is not None}
        if by_k:
            yield Acceptance(
                candidate=anchors.candidate,
                temperature=anchors.temperature,
                group=group,
                exactness=Exactness.EXACT,
                requests=int(kept_R.sum()),
                by_k=by_k,
            )


def count_steps(anchors: Anchors, steps: ServingWalk) -> Floats:
    """Return the decode steps of each request, [R]."""
    return np.bincount(steps.request_S, steps.weight_S, minlength=len(anchors.requests)).astype(np.float64)


def _count_emitted(anchors: Anchors) -> Floats:
    """Return the tokens that the decode steps of each request emit, [R]: all but the one of the prefill."""
    return (anchors.lengths - 1).astype(np.float64)


def tokens_per_step(anchors: Anchors, k: int) -> Floats:
    """Return the tokens per decode step of each request that has decode steps."""
    steps_R, emitted_R = count_steps(anchors, walk(anchors, k)), _count_emitted(anchors)
    return emitted_R[steps_R > 0] / steps_R[steps_R > 0]


def warn_of_few(anchors: Anchors, k: int) -> Finding | None:
    """Return the finding that a few requests dominate a candidate's result; None if they do not."""
    steps_R, emitted_R = count_steps(anchors, walk(anchors, k)), _count_emitted(anchors)
    if not steps_R.sum():
        return None
    largest = max(1, round(_TAIL * len(steps_R)))
    share = find_variance_share(emitted_R, steps_R, largest=largest)
    if share <= _SHARE or largest == len(steps_R):
        return None
    return warning(
        "few-requests-decide",
        largest=largest,
        num_steps=len(steps_R),
        temperature=anchors.temperature,
        share=share,
        label=anchors.candidate.label,
    )


def _at_k(anchors: Anchors, steps: ServingWalk, kept_R: NDArray[np.bool_]) -> AcceptanceAtK | None:
    """Return what the steps of some requests did together; None where their answers are single tokens."""
    kept_S = kept_R[steps.request_S]
    steps_R, emitted_R = count_steps(anchors, steps)[kept_R], _count_emitted(anchors)[kept_R]
    if not steps_R.sum():
        return None
    weight_S, drafted_S, survive_SK = steps.weight_S[kept_S], steps.drafted_S[kept_S], steps.survive_SK[kept_S]
    per_pos = weight_S @ survive_SK
    reached = [float(weight_S[drafted_S > place].sum()) for place in range(steps.k)]
    decoding_R = steps_R > 0
    own_R = emitted_R[decoding_R] / steps_R[decoding_R]
    percentiles = np.percentile(own_R, _PERCENTILES).tolist()
    return AcceptanceAtK(
        steps=float(steps_R.sum()),
        emitted=float(emitted_R.sum()),
        drafts=reached[0],
        drafted=float(weight_S @ drafted_S),
        accepted=float(per_pos.sum()),
        accepted_per_pos=tuple(per_pos.tolist()),
        drafted_per_pos=tuple(reached),
        tokens_per_step=_within(ratio_of_totals(emitted_R, steps_R), steps.k),
        per_request=(percentiles[0], percentiles[1], percentiles[2]),
        typical=float(np.exp(np.log(own_R).mean())),
    )


def _within(found: Interval, k: int) -> Interval:
    """Return the interval inside what is possible: a step emits 1 to k + 1 tokens."""
    return Interval(value=found.value, low=max(1.0, found.low), high=min(k + 1.0, found.high))


def percentiles_of(lengths: Ints) -> tuple[int, int, int]:
    """Return the 10th, 50th and 90th percentile."""
    p10, p50, p90 = np.percentile(lengths, _PERCENTILES).round().astype(int).tolist()
    return p10, p50, p90


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWalk:
    """The decode steps of all requests at one k, in the order of the requests and of their answers.

    For sampled drafts, these are all possible steps with their probabilities: expectations without sampling noise.
    Otherwise, every weight is 1 and every `survive_SK` is 0 or 1.
    """

    request_S: Ints
    token_S: Ints
    """int [S]: answer tokens confirmed when the step begins."""
    weight_S: Floats
    """float [S]: probability that serving takes the step."""
    drafted_S: Ints
    survive_SK: NDArray[np.float32]
    """float32 [S, K]: probability that draft tokens 0..j are all accepted; 0 after the answer's end."""

    @property
    def k(self) -> int:
        """Maximum draft tokens per step."""
        return int(self.survive_SK.shape[1])


def walk(anchors: Anchors, k: int, *, limited: bool = True) -> ServingWalk:
    """Return the steps at one k.

    Args:
        k: maximum draft tokens per step.
        limited: whether a draft ends one token before the answer's maximum length, as in the embedded engine. vLLM
            drafts on.

    Raises:
        KeyError: the anchors do not cover this k.
    """
    drafts = anchors.drafts_for(k)
    request_N = np.repeat(np.arange(len(anchors.requests)), anchors.lengths)
    token_N = np.arange(anchors.offsets[-1]) - anchors.offsets[:-1][request_N]
    budget_N = np.minimum(k, anchors.limits[request_N] - token_N - 1) if limited else np.full(len(token_N), k)
    drafted_N = np.minimum(drafts.drafted_N, np.maximum(budget_N, 0)).astype(np.int64)
    rest_N = anchors.lengths[request_N] - token_N
    survive_NK = _survive(drafts, np.minimum(drafted_N, rest_N), k)
    if drafts.chances_NK is None:
        weight_N = _visit(anchors.offsets, survive_NK.sum(1).astype(np.int64), rest_N)
    else:
        weight_N = _spread(anchors.offsets, survive_NK, rest_N)
    steps = np.flatnonzero(weight_N)
    return ServingWalk(
        request_S=request_N[steps],
        token_S=token_N[steps],
        weight_S=weight_N[steps],
        drafted_S=drafted_N[steps],
        survive_SK=survive_NK[steps],
    )


def _survive(drafts: Drafts, usable_N: Ints, k: int) -> NDArray[np.float32]:
    """Return the chance that draft tokens 0..j are accepted, of `usable` tokens each."""
    inside_NK = np.arange(k) < usable_N[:, None]
    if drafts.accepted_N is not None:
        return ((np.arange(k) < drafts.accepted_N[:, None]) & inside_NK).astype(np.float32)
    assert drafts.chances_NK is not None
    return np.cumprod(np.where(inside_NK, drafts.chances_NK[:, :k], 0), 1, dtype=np.float32)


def _visit(offsets: Ints, accepted_N: Ints, rest_N: Ints) -> Floats:
    """Return 1 for every anchor that a step begins at, else 0: all requests go on by one step a round."""
    weight_N = np.zeros(len(accepted_N))
    next_N = np.minimum(accepted_N + 1, rest_N) + np.arange(len(accepted_N))
    at, ends = offsets[:-1] + 1, offsets[1:]
    while (going := at < ends).any():
        at, ends = at[going], ends[going]
        weight_N[at] = 1
        at = next_N[at]
    return weight_N


def _spread(offsets: Ints, survive_NK: NDArray[np.float32], rest_N: Ints) -> Floats:
    """Return the chance that a step begins at each anchor: forward over the tokens, all requests at once."""
    k = survive_NK.shape[1]
    weight_N = np.zeros(len(rest_N))
    at, ends = offsets[:-1] + 1, offsets[1:]
    weight_N[at[at < ends]] = 1
    while (going := at < ends).any():
        at, ends = at[going], ends[going]
        stays = weight_N[at]
        for accepted in range(k + 1):
            goes_on = survive_NK[at, accepted] if accepted < k else np.float32(0)
            target = at + accepted + 1
            inside = target < ends
            reached = survive_NK[at, accepted - 1] if accepted else np.float32(1)
            mass = stays * (reached - goes_on)
            weight_N[target[inside]] += mass[inside]
        at = at + 1
    return weight_N
