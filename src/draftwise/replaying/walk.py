"""The steps that serving the logged answers would have taken, for any k: only what a step begins at is counted.

The mean over all positions is not what serving sees: a long match is entered at its start, never inside it, so that
mean is 6 to 196 % too high on public data (SpecDecode-Bench, arXiv 2601.11580).

Shape letters: R requests, N answer tokens of all requests, K draft tokens, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.replaying.anchors import Anchors, Drafts, Ints

__all__ = ["Walk", "walk"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The decode steps of all requests at one k, in the order of the requests and of their answers.

    Of sampled drafts these are all steps that can occur, each with its chance: expectations without the noise of
    drawing. Of others every weight is 1 and every `survive_SK` 0 or 1.
    """

    request_S: Ints
    token_S: Ints
    """Tokens of the answer that are confirmed when the step begins."""
    weight_S: Floats
    """Chance that serving takes the step."""
    drafted_S: Ints
    survive_SK: NDArray[np.float32]
    """Chance that draft tokens 0..j are all accepted. Tokens behind the end of an answer are not known to be."""

    @property
    def k(self) -> int:
        """Draft tokens a step at most."""
        return int(self.survive_SK.shape[1])


def walk(anchors: Anchors, k: int, *, limited: bool = True) -> Walk:
    """Return the steps at one k.

    Args:
        anchors: the drafts.
        k: tokens drafted at most.
        limited: whether a draft ends one token before the answer's largest length, as the embedded engine's does;
            vLLM drafts on.

    Raises:
        KeyError: the anchors do not answer for this k.
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
    return Walk(
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
