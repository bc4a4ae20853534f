"""Log-probabilities of chosen and most likely tokens, from the raw logits as vLLM's `raw_logprobs` gives them.

The device ranks (`rank_tokens`), and the host reads what it ranked once the copy has arrived (`parse`).

Shape letters: R rows, V vocabulary, T = 1 + k: the chosen token and the k likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.outputs import Logprob, LogprobsOfToken

__all__ = ["Ranked", "parse", "rank_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranked:
    """The candidates of each row: the chosen token first, then the likeliest in order."""

    ids_RT: Tensor
    """int64"""
    logprobs_RT: Tensor
    """float32"""
    ranks_R: Tensor
    """int64, how many tokens are at least as likely as the chosen one, itself included (so ties count, as in vLLM)."""

    def __getitem__(self, rows: slice | Tensor) -> Ranked:
        """Return some of the rows."""
        return Ranked(ids_RT=self.ids_RT[rows], logprobs_RT=self.logprobs_RT[rows], ranks_R=self.ranks_R[rows])


def rank_tokens(logits_RV: Tensor, token_ids_R: Tensor, k: int) -> Ranked:
    """Rank the given token and find the k likeliest ones of each row, without waiting for the device.

    Args:
        logits_RV: the model's own, before penalties and temperature, any float type.
        token_ids_R: int64, the sampled or the prompt token that follows each row; a negative one marks a row that
            nobody will read.
        k: how many candidates, at least 0; no more than there are tokens are returned.
    """
    logprobs_RV = logits_RV.float().log_softmax(-1)
    ids_R1 = token_ids_R.clamp(min=0).unsqueeze(1)
    chosen_R1 = logprobs_RV.gather(1, ids_R1)
    top_RT, top_ids_RT = logprobs_RV.topk(min(k, logprobs_RV.shape[1]), dim=1)
    return Ranked(
        ids_RT=torch.cat([ids_R1, top_ids_RT], dim=1),
        logprobs_RT=torch.cat([chosen_R1, top_RT], dim=1),
        ranks_R=(logprobs_RV >= chosen_R1).sum(1),
    )


def parse(ranked: Ranked, k: int | Sequence[int]) -> list[LogprobsOfToken]:
    """Return for each row the chosen token and the k likeliest ones, as token id -> Logprob.

    A candidate's rank is its place in the sorted order; any other token's rank is `ranks_R`.

    Args:
        ranked: on the host, or reading it waits for the device.
        k: candidates of every row, or of each; at most those that were asked of `rank_tokens`.
    """
    rows = zip(ranked.ids_RT.tolist(), ranked.logprobs_RT.tolist(), ranked.ranks_R.tolist(), strict=True)
    counts = [k] * len(ranked.ranks_R) if isinstance(k, int) else k
    return [
        {
            token: Logprob(value, place or rank)
            for place, (token, value) in enumerate(zip(ids[: count + 1], values, strict=False))
        }
        for count, (ids, values, rank) in zip(counts, rows, strict=True)
    ]
