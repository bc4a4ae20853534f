"""The draft in the making: turns a drafter's logits into tokens, one after another or all at once.

Shape letters: B sequences, R = B * M draft tokens of all sequences, M of the longest draft, K with padding,
U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.kernels.sampling_constants import STEP
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.random import Lane
from draftwise.engine.sampling.tempering import argmax, draw, sharpen, temper


class DraftBuilder:
    """Turns logits into draft tokens, static in shape: for a sequence that wants fewer some are drafted in vain.

    Args:
        counts_B: int64, draft tokens wanted of each sequence, 0..k.
        probabilistic: see `choose`, like the last two.

    Attributes:
        num_steps: M, or k where only the device knows it.
    """

    def __init__(
        self,
        new: Confirmed,
        counts_B: Tensor,
        k: int,
        *,
        probabilistic: bool,
        target_ids_U: Tensor | None,
        vocab_size: int,
    ) -> None:
        self._new, self._counts_B, self._k = new, counts_B, k
        self._probabilistic, self._target_ids_U, self._vocab_size = probabilistic, target_ids_U, vocab_size
        self._first_B = new.num_output_B * STEP if probabilistic else None
        self._tokens: list[Tensor] = []
        self._probs: list[Tensor] = []
        self._confidence: list[Tensor] = []
        self.num_steps = k if k == 0 or new.spans.host is None else int(counts_B.max())

    @property
    def is_chain(self) -> bool:
        """Whether tokens are the likeliest ones, and nothing else is asked of them."""
        told = self._new.wants_confidence or self._new.told_BK is not None
        return self.num_steps > 0 and not self._probabilistic and not told

    def take(self, tokens_BM: Tensor) -> None:
        """Take all draft tokens as they are."""
        self._tokens.append(tokens_BM)

    def add(self, step: int, logits_BU: Tensor) -> Tensor:
        """Choose draft token number `step` of every sequence; return the tokens [B]."""
        new, first_B = self._new, self._first_B
        positions_B = None if first_B is None else first_B + step
        return self._choose(logits_BU, 1, new.temperature_B, new.seeds_B, positions_B).squeeze(1)

    def add_all(self, logits_RU: Tensor) -> None:
        """Choose all draft tokens at once, independently of each other; rows go sequence after sequence."""
        new, num_steps, first_B = self._new, self.num_steps, self._first_B
        if first_B is None:
            self._choose(logits_RU, num_steps, None, None, None)
            return
        steps_M = torch.arange(num_steps, device=first_B.device)
        temperature_BM, seeds_BM = (t.unsqueeze(1).expand(-1, num_steps) for t in (new.temperature_B, new.seeds_B))
        positions_BM = first_B.unsqueeze(1) + steps_M
        self._choose(logits_RU, num_steps, temperature_BM.flatten(), seeds_BM.flatten(), positions_BM.flatten())

    def to_draft(self) -> Draft:
        """Return what was drafted."""
        if not self._tokens:
            return Draft.empty(len(self._counts_B), self._k, device=self._counts_B.device)
        padding = self._k - self.num_steps
        probs_BKV = confidence_BK = None
        if self._probs:
            probs_BKV = F.pad(torch.cat(self._probs, dim=1), (0, 0, 0, padding))
        if self._confidence:
            confidence_BK = F.pad(torch.cat(self._confidence, dim=1), (0, padding))
        tokens_BK = self._tokens[0] if len(self._tokens) == 1 else torch.cat(self._tokens, dim=1)
        if padding:
            tokens_BK = F.pad(tokens_BK, (0, padding))
        return Draft(tokens_BK=tokens_BK, lengths_B=self._counts_B, probs_BKV=probs_BKV, confidence_BK=confidence_BK)

    def _choose(
        self,
        logits_RU: Tensor,
        num_steps: int,
        temperature_R: Tensor | None,
        seeds_R: Tensor | None,
        positions_R: Tensor | None,
    ) -> Tensor:
        """Choose the next `num_steps` draft tokens of every sequence; return them, [B, num_steps]."""
        tokens_R, probs_RV = choose(
            logits_RU,
            temperature_B=temperature_R,
            seeds_B=seeds_R,
            positions_B=positions_R,
            probabilistic=self._probabilistic,
            target_ids_U=self._target_ids_U,
            vocab_size=self._vocab_size,
        )
        if probs_RV is not None:
            self._probs.append(probs_RV.view(-1, num_steps, self._vocab_size))
        if self._new.wants_confidence:
            law_RU = logits_RU.float().softmax(-1) if probs_RV is None else probs_RV
            self._confidence.append(law_RU.amax(-1).view(-1, num_steps))
        self._tokens.append(self._told(tokens_R.view(-1, num_steps)))
        return self._tokens[-1]

    def _told(self, tokens_BM: Tensor) -> Tensor:
        """Return the next tokens of a draft as a replay tells them, where it does."""
        if self._new.told_BK is None:
            return tokens_BM
        begin = sum(tokens.shape[1] for tokens in self._tokens)
        told_BM = self._new.told_BK[:, begin : begin + tokens_BM.shape[1]]
        return torch.where(told_BM >= 0, told_BM, tokens_BM)


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
        temperature_B: float32 sampling temperature; 0 takes the likeliest token.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, which random number it is, of a stream that only drafts use.

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
