"""Turns a drafter's logits into its next draft tokens: the likeliest tokens, or draws at each request's temperature.

Shape letters: B sequences, U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from draftwise.engine.sampling.random import Lane
from draftwise.engine.sampling.tempering import argmax, draw, sharpen, temper

__all__ = ["choose"]


def choose(
    logits_BU: Tensor,
    *,
    probabilistic: bool,
    target_ids_U: Tensor | None,
    vocab_size: int,
    temperature_B: Tensor | None = None,
    seeds_B: Tensor | None = None,
    positions_B: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the next draft token of each sequence, and what it was drawn from.

    Deterministic drafting costs one argmax and looks at neither temperature, seeds nor positions.
    Draws use the lane `Lane.DRAFT` of the counter-based noise (Gumbel-max), so that a draft token shares no randomness
    with what accepts it. Shapes are static and nothing waits for the device.

    Args:
        logits_BU: the drafter's logits, any float type.
        probabilistic: whether to draw at the temperature at all; the last three are needed only then.
        target_ids_U: the target's id of each token that the drafter can name, where its vocabulary is a smaller one.
        vocab_size: V.
        temperature_B: float32 sampling temperature; 0 takes the likeliest token.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, index of the token being drafted among its sequence's output tokens.

    Returns:
        int64 target ids [B], and with `probabilistic` the float32 distribution [B, V] of each (one-hot where the
        temperature is 0), else None.
    """
    if not probabilistic:
        return argmax(logits_BU, target_ids_U), None
    assert temperature_B is not None
    assert seeds_B is not None
    assert positions_B is not None
    logits_B1U = logits_BU.unsqueeze(1)
    choice_B = draw(logits_B1U, temperature_B, seeds_B=seeds_B, positions_B=positions_B, lane=Lane.DRAFT).squeeze(1)
    law_B1U = sharpen(temper(logits_B1U, temperature_B), temperature_B == 0)
    probs_BV = _spread(law_B1U.squeeze(1).softmax(-1).float(), target_ids_U, vocab_size)
    return choice_B if target_ids_U is None else target_ids_U[choice_B], probs_BV


def _spread(probs_BU: Tensor, target_ids_U: Tensor | None, vocab_size: int) -> Tensor:
    """Return the distribution over the target's vocabulary; tokens that the drafter cannot name have none."""
    if target_ids_U is None:
        assert probs_BU.shape[-1] == vocab_size
        return probs_BU
    return probs_BU.new_zeros(len(probs_BU), vocab_size).index_add_(1, target_ids_U, probs_BU)
