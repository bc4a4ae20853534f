"""Decides how many draft tokens stand and which token follows them: the step that makes speculation lossless.

Shape letters: B sequences, K draft tokens, S = K+1 target rows a sequence, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.acceptance import Acceptance, Standard, Synthetic, Typical
from draftwise.engine.proposers.base import Draft
from draftwise.engine.random import Lane, gumbel, uniform

__all__ = ["Verdict", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one step makes final."""

    tokens_BS: Tensor
    """int64; row b holds its accepted draft tokens and the token that follows them, then -1."""
    num_accepted_B: Tensor
    """int64, 0..length of the draft; one token more than that is emitted."""


def verify(
    logits_BSV: Tensor,
    draft: Draft,
    *,
    greedy_B: Tensor | None,
    seeds_B: Tensor,
    positions_B: Tensor,
    acceptance: Acceptance,
) -> Verdict:
    """Return which draft tokens stand and what follows them: a function of its arguments alone, no host sync.

    Under `Standard`, whatever the draft, the emitted tokens have the target's distribution:

    - Greedy rows keep draft tokens while they equal the argmax.
    - A deterministic draft (no probabilities, q = 1) is coupled by the Gumbel-max trick: every row draws its token
      x_s = argmax(logits_s + noise(seed, position + s)) as plain decoding would, and draft tokens stand while they
      equal x. Draft token d stands with probability p(d), and given that it falls x follows p without d,
      renormalised: exactly rejection sampling with a one-hot q (Leviathan et al. 2023, arXiv 2211.17192;
      Chen et al. 2023, arXiv 2302.01318). Beyond the law, the tokens themselves are those of plain decoding with
      the same seed.
    - A draft with probabilities q is rejection-sampled: d stands with probability min(1, p(d)/q(d)), the first that
      falls is replaced by a draw from max(p - q, 0), renormalised, and after a draft that stands whole a token is
      drawn from p.

    Args:
        logits_BSV: after `process_logits`; row s predicts the token after draft tokens 0..s-1.
        draft: K guesses a sequence, of which the first `lengths_B` count.
        greedy_B: bool; None when every row is greedy, which spares the noise.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, position in that stream of the token that row 0 decides.
        acceptance: the rule by which draft tokens stand.
    """
    num_rows = logits_BSV.shape[1]
    assert draft.tokens_BK.shape[1] == num_rows - 1
    row_S = torch.arange(num_rows, device=logits_BSV.device)
    real_BK = row_S[:-1] < draft.lengths_B.unsqueeze(1)
    counters = (seeds_B.unsqueeze(1), positions_B.unsqueeze(1) + row_S)
    if greedy_B is None:
        next_BS = logits_BSV.argmax(-1)
        stands_BK = draft.tokens_BK == next_BS[:, :-1]
    else:
        stands_BK, next_BS = _judge(_sharpen(logits_BSV, greedy_B), draft, real_BK, counters, acceptance)
    if isinstance(acceptance, Synthetic):
        coins_BK = uniform(*counters, Lane.ACCEPT)[:, :-1]
        stands_BK = coins_BK < coins_BK.new_tensor(acceptance.conditional_rates[: num_rows - 1])

    num_accepted_B = (stands_BK & real_BK).long().cumprod(1).sum(1)
    last_B1 = num_accepted_B.unsqueeze(1)
    tokens_BS = torch.cat([draft.tokens_BK, next_BS[:, -1:]], dim=1)
    tokens_BS = torch.where(row_S == last_B1, next_BS, tokens_BS).masked_fill(row_S > last_B1, -1)
    return Verdict(tokens_BS=tokens_BS, num_accepted_B=num_accepted_B)


_Counters = tuple[Tensor, Tensor]
"""What random numbers are functions of: seeds_B1 and positions_BS."""


def _sharpen(logits_BSV: Tensor, greedy_B: Tensor) -> Tensor:
    """Return the logits with all probability of greedy rows on their argmax: with that, one rule serves both kinds.

    A draft token then has p = 1 or 0, so each rule below accepts it exactly if it is the argmax.
    """
    certain_BSV = torch.full_like(logits_BSV, -torch.inf).scatter_(2, logits_BSV.argmax(-1, keepdim=True), 0)
    return torch.where(greedy_B.view(-1, 1, 1), certain_BSV, logits_BSV)


def _judge(
    logits_BSV: Tensor, draft: Draft, real_BK: Tensor, counters: _Counters, acceptance: Acceptance
) -> tuple[Tensor, Tensor]:
    """Return which draft tokens stand, and for every row the token to emit if it is the first after those that do."""
    if draft.probs_BKV is not None and isinstance(acceptance, Standard):
        # Past the draft's end q is 0, so that the residual there is p itself.
        return _reject(logits_BSV, draft.tokens_BK, draft.probs_BKV * real_BK.unsqueeze(2), counters)
    next_BS = _draw(logits_BSV, counters)
    if isinstance(acceptance, Typical):
        return _is_typical(logits_BSV[:, :-1], draft.tokens_BK, acceptance), next_BS
    return draft.tokens_BK == next_BS[:, :-1], next_BS


def _draw(logits_BSV: Tensor, counters: _Counters) -> Tensor:
    """Return a token from softmax(logits) for each row, by the Gumbel-max trick."""
    return (logits_BSV + gumbel(*counters, logits_BSV.shape[-1], Lane.TOKEN)).argmax(-1)


def _reject(logits_BSV: Tensor, tokens_BK: Tensor, q_BKV: Tensor, counters: _Counters) -> tuple[Tensor, Tensor]:
    """Return the outcome of rejection sampling with draft probabilities q, as `_judge` does."""
    p_BSV = logits_BSV.softmax(-1)
    residual_BSV = p_BSV.clone()
    residual_BSV[:, :-1] -= q_BKV
    residual_BSV.clamp_(min=0)
    # Rounding can leave nothing where p equals q; a token that falls even so is replaced by a draw from p.
    nothing_BS1 = residual_BSV.amax(-1, keepdim=True) == 0
    next_BS = _draw(torch.where(nothing_BS1, p_BSV, residual_BSV).log(), counters)
    p_token_BK = p_BSV[:, :-1].gather(2, tokens_BK.unsqueeze(2)).squeeze(2)
    q_token_BK = q_BKV.gather(2, tokens_BK.unsqueeze(2)).squeeze(2)
    coins_BK = uniform(*counters, Lane.ACCEPT)[:, :-1]
    return coins_BK * q_token_BK < p_token_BK, next_BS


def _is_typical(logits_BKV: Tensor, tokens_BK: Tensor, rule: Typical) -> Tensor:
    """Return which draft tokens are probable enough for how certain the target is."""
    p_BKV = logits_BKV.softmax(-1)
    entropy_BK = torch.special.entr(p_BKV).sum(-1)
    bar_BK = (rule.alpha * (-entropy_BK).exp()).clamp(max=rule.threshold)
    return p_BKV.gather(2, tokens_BK.unsqueeze(2)).squeeze(2) > bar_BK
