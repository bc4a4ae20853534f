"""Log-probabilities of chosen and most likely tokens from raw logits, as vLLM's `raw_logprobs`.

The device ranks tokens (`rank_tokens`), and the host parses the result once copied (`parse`).

Shape letters: R rows, V vocabulary, T = 1 + k: the chosen token and the k likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.engine_outputs import Logprob, LogprobsOfToken, RankedRow
from draftwise.engine.sampling.tempering import kernels_for


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRanks:
    """The candidates of each row: the chosen token first, then the likeliest in order."""

    ids_RT: Tensor
    """int64"""
    logprobs_RT: Tensor
    """float32"""
    ranks_R: Tensor
    """int64, number of tokens at least as likely as the chosen one, itself included (ties count, as in vLLM)."""

    def rows(self) -> list[RankedRow]:
        """Return all values as Python numbers. Waits for the device."""
        return list(zip(self.ids_RT.tolist(), self.logprobs_RT.tolist(), self.ranks_R.tolist(), strict=True))


def rank_tokens(logits_RV: Tensor, token_ids_R: Tensor, k: int) -> TokenRanks:
    """Rank each row's given token and find the k likeliest ones, without waiting for the device.

    Args:
        logits_RV: the model's own, before penalties and temperature, any float type.
        token_ids_R: int64, sampled or prompt token that follows each row; negative for an unused row.
        k: number of candidates, at least 0, limited by the vocabulary.
    """
    ids_R1, k = token_ids_R.clamp(min=0).unsqueeze(1), min(k, logits_RV.shape[1])
    if (kernels := kernels_for(logits_RV)) and k <= kernels.MOST_RANKED:
        ids_RT, logprobs_RT, ranks_R = kernels.rank(logits_RV, ids_R1.squeeze(1), k)
        return TokenRanks(ids_RT=ids_RT, logprobs_RT=logprobs_RT, ranks_R=ranks_R)
    logprobs_RV = logits_RV.float().log_softmax(-1)
    chosen_R1 = logprobs_RV.gather(1, ids_R1)
    top_RT, top_ids_RT = logprobs_RV.topk(k, dim=1)
    return TokenRanks(
        ids_RT=torch.cat([ids_R1, top_ids_RT], dim=1),
        logprobs_RT=torch.cat([chosen_R1, top_RT], dim=1),
        ranks_R=(logprobs_RV >= chosen_R1).sum(1),
    )


def parse(rows: Iterable[RankedRow], k: int, text_of: Callable[[int], str]) -> list[LogprobsOfToken]:
    """Return for each row the chosen token and the k likeliest ones, as token id -> Logprob.

    A candidate's rank is its place in the sorted order; any other token's rank is `ranks_R`.

    Args:
        rows: result of `TokenRanks.rows`.
        k: candidates per row, at most those requested from `rank_tokens`.
    """
    return [
        {
            token: Logprob(value, place or rank, text_of(token))
            for place, (token, value) in enumerate(zip(ids[: k + 1], values, strict=False))
        }
        for ids, values, rank in rows
    ]
