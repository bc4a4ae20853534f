"""Turns a drafter's logits into its next guesses: the likeliest tokens, or draws at each request's temperature.

Shape letters: B sequences, U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.random import Lane, gumbel

__all__ = ["choose"]

_MIN_TEMPERATURE = 0.01
"""As in the target's own sampling: dividing by less would overflow."""


def choose(
    logits_BU: Tensor,
    *,
    temperature: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    probabilistic: bool,
    target_ids_U: Tensor | None,
    vocab_size: int,
) -> tuple[Tensor, Tensor | None]:
    """Return the next draft token of each sequence, and what it was drawn from.

    Deterministic drafting costs one argmax and looks at neither temperature, seeds nor positions (they may be empty).
    Draws use the lane `Lane.DRAFT` of the counter-based noise (Gumbel-max), so that a guess shares no randomness with
    the verdict on it. Nothing here waits for the device.

    Args:
        logits_BU: the drafter's logits, any float type.
        temperature: [B] sampling temperature; 0 takes the likeliest token.
        seeds: [B] seed of each sequence's random stream.
        positions: [B] index of the token being guessed among its sequence's output tokens.
        probabilistic: whether to draw at the temperature at all.
        target_ids_U: the target's id of each token that the drafter can name, where its vocabulary is a smaller one.
        vocab_size: V.

    Returns:
        int64 target ids [B], and with `probabilistic` the float32 distribution [B, V] of each (one-hot where the
        temperature is 0), else None.
    """
    if not probabilistic:
        return _to_target(logits_BU.argmax(-1), target_ids_U), None
    device, num_choices = logits_BU.device, logits_BU.shape[-1]
    temperature_B1 = torch.tensor(temperature, dtype=torch.float32, device=device).unsqueeze(1)
    greedy_B1 = temperature_B1 == 0
    tempered_BU = logits_BU.float() / temperature_B1.clamp(min=_MIN_TEMPERATURE)
    seeds_B, positions_B = torch.tensor([seeds, positions], dtype=torch.long, device=device)
    noise_BU = gumbel(seeds_B, positions_B, num_choices, Lane.DRAFT)
    choice_B = torch.where(greedy_B1, tempered_BU, tempered_BU + noise_BU).argmax(-1)
    probs_BU = torch.where(greedy_B1, F.one_hot(choice_B, num_choices).float(), tempered_BU.softmax(-1))
    return _to_target(choice_B, target_ids_U), _spread(probs_BU, target_ids_U, vocab_size)


def _to_target(choice_B: Tensor, target_ids_U: Tensor | None) -> Tensor:
    return choice_B if target_ids_U is None else target_ids_U[choice_B]


def _spread(probs_BU: Tensor, target_ids_U: Tensor | None, vocab_size: int) -> Tensor:
    """Return the distribution over the target's vocabulary; tokens that the drafter cannot name have none."""
    if target_ids_U is None:
        assert probs_BU.shape[-1] == vocab_size
        return probs_BU
    return probs_BU.new_zeros(len(probs_BU), vocab_size).index_add_(1, target_ids_U, probs_BU)
