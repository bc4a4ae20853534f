"""Log-probabilities of chosen and most likely tokens, from the raw logits as vLLM's `raw_logprobs` gives them.

Shape letters: R rows, V vocabulary, T top candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwise.engine.outputs import Logprob, LogprobsOfToken

__all__ = ["top_logprobs"]


def top_logprobs(logprobs_RV: Tensor, token_ids_R: Tensor, k: int) -> list[LogprobsOfToken]:
    """Return for each row the given token and the k most likely ones, as token id -> Logprob.

    Args:
        logprobs_RV: log-softmax of the model's logits, before penalties and temperature.
        token_ids_R: int64, the sampled or the prompt token that follows each row.
        k: how many candidates, at least 0; the given token comes on top unless it is one of them.

    A candidate's rank is its place in the sorted order; any other token's rank is the number of tokens that are at
    least as likely, itself included (so ties count, as in vLLM).
    """
    chosen_R1 = logprobs_RV.gather(1, token_ids_R.unsqueeze(1))
    rank_R = (logprobs_RV >= chosen_R1).sum(1)
    top_RT, top_ids_RT = logprobs_RV.topk(min(k, logprobs_RV.shape[1]), dim=1)
    ids = torch.cat([token_ids_R.unsqueeze(1), top_ids_RT], dim=1).tolist()
    values = torch.cat([chosen_R1, top_RT], dim=1).tolist()
    return [
        {
            token: Logprob(value, place or rank)
            for place, (token, value) in enumerate(zip(ids[r], values[r], strict=True))
        }
        for r, rank in enumerate(rank_R.tolist())
    ]
