"""Decides how many draft tokens are accepted and which token follows: the step that makes speculation lossless.

Throughout, p is the target's distribution of a token (after temperature and truncation) and q the distribution that the
draft token was drawn from. Sources: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318) and,
for whole blocks, Sun et al. 2024 (arXiv 2403.10444).

Shape letters: B sequences, K draft tokens, S = K+1 target rows a sequence, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from draftwise.engine.kernels.sampling_constants import STEP, Lane
from draftwise.engine.sampling.acceptance_rules import Rule, Standard, SyntheticRates, Typical
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.random import uniform
from draftwise.engine.sampling.tempering import (
    Tempering,
    argmax,
    draw,
    find_floors,
    kernels_for,
    sample,
    sharpen,
    temper_and_truncate,
)


def _reject(p_BSV: Tensor, q_BKV: Tensor, draft: Draft, counters: _Counters) -> tuple[Tensor, Tensor]:
    """Accept a draft token d with probability min(1, p(d) / q(d)), else replace it by a draw from max(p - q, 0).

    Returns:
        bool [B, K], which draft tokens are accepted; int64 [B, S], for every row the token to emit if it is the first
        after those that are accepted.
    """
    residual_BSV = _find_residual(p_BSV.clone(), q_BKV, draft)
    next_BS = _replace(residual_BSV, p_BSV, counters)
    p_token_BK, q_token_BK = _of_tokens(p_BSV[:, :-1], draft), _of_tokens(q_BKV, draft)
    return counters.uniform(q_BKV.shape[1]) * q_token_BK < p_token_BK, next_BS


def _reject_block(
    p_BSV: Tensor, q_BKV: Tensor, draft: Draft, counters: _Counters, forced_BS: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Accept the longest start of the draft that stands, else go on by a draw from what is left; return as `_reject`.

    A start is judged by how probable all of it is: a token that p likes better makes up for others before it.
    """
    joint_BS = _find_joint(p_BSV, q_BKV, draft, forced_BS)
    residual_BSV = _find_residual(p_BSV * joint_BS.unsqueeze(2), q_BKV, draft)
    next_BS = _replace(residual_BSV, p_BSV, counters)
    by_step = counters._replace(positions_B=counters.positions_B * STEP)
    stands_BK = by_step.uniform(q_BKV.shape[1]) < _find_chances(joint_BS, residual_BSV)[:, 1:]
    number_K = torch.arange(1, q_BKV.shape[1] + 1, device=q_BKV.device)
    longest_B1 = (stands_BK & (number_K <= draft.lengths_B.unsqueeze(1))).long().mul(number_K).amax(1, keepdim=True)
    return number_K <= longest_B1, next_BS


def _find_joint(p_BSV: Tensor, q_BKV: Tensor, draft: Draft, forced_BS: Tensor | None = None) -> Tensor:
    """Return min(1, joint before * p(d) / q(d)) after each draft token d, float32 [B, S]; column 0 is 1.

    A token that is forced says nothing of p: the block begins after it.
    """
    ratio_BK = _of_tokens(p_BSV[:, :-1], draft) / _of_tokens(q_BKV, draft)
    if forced_BS is not None:
        ratio_BK = ratio_BK.masked_fill(forced_BS[:, :-1] >= 0, 1)
    joints = [torch.ones_like(draft.lengths_B, dtype=torch.float32)]
    for ratio_B in ratio_BK.nan_to_num(nan=0.0).unbind(1):
        joints.append((joints[-1] * ratio_B).clamp(max=1))
    return torch.stack(joints, dim=1)


def _find_chances(joint_BS: Tensor, residual_BSV: Tensor) -> Tensor:
    """Return with which probability the draft stands up to each row, given that it does not stand any further."""
    left_BS = residual_BSV.sum(-1)
    rest_BS = left_BS + 1 - joint_BS
    return torch.where(rest_BS > 0, left_BS / rest_BS, 1.0)


def _find_residual(p_BSV: Tensor, q_BKV: Tensor, draft: Draft) -> Tensor:
    """Return max(p - q, 0), in the place of p."""
    # Past the draft's end q is 0, so that the residual there is p itself.
    real_BK = torch.arange(q_BKV.shape[1], device=q_BKV.device) < draft.lengths_B.unsqueeze(1)
    p_BSV[:, :-1] -= q_BKV * real_BK.unsqueeze(2)
    return p_BSV.clamp_(min=0)


def _replace(residual_BSV: Tensor, p_BSV: Tensor, counters: _Counters) -> Tensor:
    """Return a draw from each row of the residual."""
    # Rounding can leave nothing where p equals q; a token that is rejected even so is replaced by a draw from p.
    nothing_BS1 = residual_BSV.amax(-1, keepdim=True) == 0
    return counters.draw(torch.where(nothing_BS1, p_BSV, residual_BSV).log())


def _of_tokens(probs_BKV: Tensor, draft: Draft) -> Tensor:
    return probs_BKV.gather(2, draft.tokens_BK.unsqueeze(2)).squeeze(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedTokens:
    """The tokens that one step makes final."""

    tokens_BS: Tensor
    """int64; row b holds its accepted draft tokens and the token that follows them, then -1."""
    num_accepted_B: Tensor
    """int64, 0..length of the draft; one token more than that is emitted."""


def verify(
    logits_BSV: Tensor,
    draft: Draft,
    *,
    tempering: Tempering,
    seeds_B: Tensor,
    positions_B: Tensor,
    acceptance: Rule,
    forced_BS: Tensor | None = None,
) -> AcceptedTokens:
    """Return which draft tokens are accepted and what follows them, as a pure function.

    Shapes are static and nothing waits for the device, so steps can be captured.

    Under `Standard`, whatever the draft, the emitted tokens have the target's distribution:

    - Greedy rows accept draft tokens while they equal the argmax.
    - A deterministic draft (no probabilities, q = 1) is coupled by the Gumbel-max trick: every row draws its token
      x_s = argmax(logits_s + noise(seed, position + s)) as plain decoding would, and draft tokens are accepted while
      they equal x. Draft token d is accepted with probability p(d), and given that it is rejected x follows p without
      d, renormalized: exactly rejection sampling with a one-hot q. Beyond the distribution, the tokens themselves are
      those of plain decoding with the same seed.
    - A draft with probabilities q is rejection-sampled: d is accepted with probability min(1, p(d)/q(d)), the first
      rejected one is replaced by a draw from max(p - q, 0), renormalized, and after a draft that is accepted whole a
      token is drawn from p. `by_block` judges whole starts of the draft instead; with q = 1 nothing could be gained.

    Args:
        logits_BSV: the model's, or what `adjust` made of them, any float type; row s predicts the token after draft
            tokens 0..s-1. Rows past a draft's end may hold anything.
        draft: K tokens a sequence, of which the first `lengths_B` count.
        tempering: how logits become the target's distribution.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, position in that stream of the token that row 0 decides.
        forced_BS: int64, tokens that rows emit regardless of the logits, which also decide the acceptance of draft
            tokens; -1: the row decides. None: all rows decide.
    """
    assert draft.tokens_BK.shape[1] == logits_BSV.shape[1] - 1
    counters, kernels = _Counters(seeds_B, positions_B), kernels_for(logits_BSV)
    accept_BK: Tensor | None = None
    if tempering.all_greedy:
        next_BS = argmax(logits_BSV)
    elif isinstance(acceptance, Typical):
        accept_BK, next_BS = _accept_typical(logits_BSV, draft.tokens_BK, tempering, counters, acceptance)
    elif isinstance(acceptance, Standard) and draft.probs_BKV is not None and acceptance.by_block:
        p_BSV = _tempered(logits_BSV, tempering).softmax(-1)  # in torch on a GPU, too
        accept_BK, next_BS = _reject_block(p_BSV, draft.probs_BKV, draft, counters, forced_BS)
    elif isinstance(acceptance, Standard) and draft.probs_BKV is not None:
        accept_BK, next_BS = _sample_rejections(logits_BSV, draft, draft.probs_BKV, tempering, counters, kernels)
    else:
        next_BS = sample(logits_BSV, tempering, lane=Lane.TOKEN, **counters._asdict())
    if forced_BS is not None:
        next_BS, accept_BK = _force(forced_BS, draft.tokens_BK, next_BS, accept_BK)
    rates_K = acceptance.conditional_K if isinstance(acceptance, SyntheticRates) else None
    if kernels:
        emitted = kernels.emit(next_BS, draft.tokens_BK, draft.lengths_B, accept_BK, rates_K, *counters)
    else:
        emitted = _emit(next_BS, draft, accept_BK, rates_K, counters)
    return AcceptedTokens(tokens_BS=emitted[0], num_accepted_B=emitted[1])


def accept_likeliest(next_BS: Tensor, draft: Draft) -> AcceptedTokens:
    """Return what `verify` does where all rows are greedy, of the likeliest token of each row."""
    tokens_BS, num_accepted_B = _emit(next_BS, draft, None, None, None)
    return AcceptedTokens(tokens_BS=tokens_BS, num_accepted_B=num_accepted_B)


class _Counters(NamedTuple):
    """The inputs of random numbers, besides the row."""

    seeds_B: Tensor
    positions_B: Tensor

    def uniform(self, num_rows: int) -> Tensor:
        """Return the uniform numbers for accepting the draft tokens of the first rows."""
        row_S = torch.arange(num_rows, device=self.seeds_B.device)
        return uniform(self.seeds_B.unsqueeze(1), self.positions_B.unsqueeze(1) + row_S, Lane.ACCEPT)

    def draw(self, logits_BSV: Tensor) -> Tensor:
        """Return a token for each row, see `tempering.draw`."""
        return draw(logits_BSV, None, lane=Lane.TOKEN, **self._asdict())


def _sample_rejections(
    logits_BSV: Tensor,
    draft: Draft,
    q_BKV: Tensor,
    tempering: Tempering,
    counters: _Counters,
    kernels: ModuleType | None,
) -> tuple[Tensor, Tensor]:
    """Return as `_reject` does; on a GPU without storing p."""
    if kernels is None:
        return _reject(_tempered(logits_BSV, tempering).softmax(-1), q_BKV, draft, counters)
    floor_BS = find_floors(logits_BSV, tempering) if tempering.truncates else None
    drafted = draft.tokens_BK, q_BKV, draft.lengths_B
    accept_BK, next_BS = kernels.reject(logits_BSV, tempering.temperature_B, floor_BS, *drafted, *counters)
    return accept_BK, next_BS


def _accept_typical(
    logits_BSV: Tensor, tokens_BK: Tensor, tempering: Tempering, counters: _Counters, rule: Typical
) -> tuple[Tensor, Tensor]:
    """Accept draft tokens that are probable enough for how certain the target is; return as `_reject` does."""
    tempered_BSV = _tempered(logits_BSV, tempering)
    p_BKV = tempered_BSV[:, :-1].softmax(-1)
    entropy_BK = torch.special.entr(p_BKV).sum(-1)
    bar_BK = (rule.alpha * (-entropy_BK).exp()).clamp(max=rule.threshold)
    accept_BK = p_BKV.gather(2, tokens_BK.unsqueeze(2)).squeeze(2) > bar_BK
    return accept_BK, counters.draw(tempered_BSV)


def _force(
    forced_BS: Tensor, tokens_BK: Tensor, next_BS: Tensor, accept_BK: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the next tokens and what is accepted, with the forced tokens in their places."""
    is_forced_BS = forced_BS >= 0
    if accept_BK is not None:
        accept_BK = torch.where(is_forced_BS[:, :-1], tokens_BK == forced_BS[:, :-1], accept_BK)
    return torch.where(is_forced_BS, forced_BS, next_BS), accept_BK


def _tempered(logits_BSV: Tensor, tempering: Tempering) -> Tensor:
    """Return logits whose softmax is p, also on greedy rows."""
    return sharpen(temper_and_truncate(logits_BSV, tempering), tempering.temperature_B == 0)


def _emit(
    next_BS: Tensor, draft: Draft, accept_BK: Tensor | None, rates_K: Tensor | None, counters: _Counters | None
) -> tuple[Tensor, Tensor]:
    """Return `AcceptedTokens.tokens_BS` and `AcceptedTokens.num_accepted_B`.

    Draft tokens are accepted as `accept_BK` says, else at random with these rates, else where they are the next token.
    """
    num_drafted = draft.tokens_BK.shape[1]
    if num_drafted == 0:
        return next_BS, draft.lengths_B
    if rates_K is not None and counters is not None:
        accept_BK = counters.uniform(num_drafted) < rates_K[:num_drafted]
    elif accept_BK is None:
        accept_BK = draft.tokens_BK == next_BS[:, :-1]
    row_S = torch.arange(num_drafted + 1, device=next_BS.device)
    real_BK = row_S[:-1] < draft.lengths_B.unsqueeze(1)
    num_accepted_B = (accept_BK & real_BK).long().cumprod(1).sum(1)
    last_B1 = num_accepted_B.unsqueeze(1)
    tokens_BS = torch.cat([draft.tokens_BK, next_BS[:, -1:]], dim=1)
    return torch.where(row_S == last_B1, next_BS, tokens_BS).masked_fill(row_S > last_B1, -1), num_accepted_B
