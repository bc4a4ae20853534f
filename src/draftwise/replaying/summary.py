"""From anchors to a profile: every k at once, over all requests and by group, with requests as the unit of doubt.

Shape letters: R requests, S steps, K draft tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from draftwise.core import Acceptance, AcceptanceAtK, Exactness, Finding, Interval
from draftwise.replaying.anchors import Anchors, Ints
from draftwise.replaying.walk import Floats, Walk, walk
from draftwise.statistics.totals import find_variance_share, ratio_of_totals

__all__ = ["count_steps", "percentiles_of", "summarize", "tokens_per_step", "warn_of_few"]

_TAIL = 0.01
"""Share of the requests on which an interval should not rest."""
_SHARE = 0.25
"""Of the variance, from which it does; of normal deviates the largest hundredth holds a twelfth."""
_PERCENTILES = (10, 50, 90)


def summarize(anchors: Anchors, ks: Sequence[int], *, limited: bool = True) -> Iterator[Acceptance]:
    """Yield the acceptance of all requests of the anchors, then of each group.

    Args:
        anchors: of one candidate at one temperature.
        ks: those to answer for.
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


def count_steps(anchors: Anchors, steps: Walk) -> Floats:
    """Return the decode steps of each request, [R]."""
    return np.bincount(steps.request_S, steps.weight_S, minlength=len(anchors.requests)).astype(np.float64)


def _count_emitted(anchors: Anchors) -> Floats:
    """Return the tokens that the decode steps of each request emit, [R]: all but the one of the prefill."""
    return (anchors.lengths - 1).astype(np.float64)


def tokens_per_step(anchors: Anchors, k: int) -> Floats:
    """Return the tokens that a decode step emits, of each request that has any."""
    steps_R, emitted_R = count_steps(anchors, walk(anchors, k)), _count_emitted(anchors)
    return emitted_R[steps_R > 0] / steps_R[steps_R > 0]


def warn_of_few(anchors: Anchors, k: int) -> Finding | None:
    """Return the finding that few requests decide what a candidate is worth; None where they do not."""
    steps_R, emitted_R = count_steps(anchors, walk(anchors, k)), _count_emitted(anchors)
    if not steps_R.sum():
        return None
    largest = max(1, round(_TAIL * len(steps_R)))
    share = find_variance_share(emitted_R, steps_R, largest=largest)
    if share <= _SHARE or largest == len(steps_R):
        return None
    return Finding.warning(
        "few-requests-decide",
        f"{largest} of {len(steps_R)} requests at temperature {anchors.temperature:g} hold {share:.0%} of the "
        f"variance of {anchors.candidate.label}: its interval is wide for that reason, and may still be too narrow.",
        where=anchors.candidate.label,
        fix="Replay more of the log, or group it (--group-by) so that unlike traffic is apart.",
    )


def _at_k(anchors: Anchors, steps: Walk, kept_R: NDArray[np.bool_]) -> AcceptanceAtK | None:
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
