"""What the host has a part in: logits that depend on a request's history, and log-probabilities.

Shape letters: B sequences (perhaps padded), S = K+1 target rows a sequence, K draft tokens, N rows of a pass, R rows of
logits, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload
from draftwise.engine.models import CausalLM
from draftwise.engine.sampling.logits import SamplingRow, adjust, needs_adjusting
from draftwise.engine.sampling.logprobs import Ranked, rank_tokens
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.penalties import Penalties, TokenCounts
from draftwise.engine.sampling.verify import Accepted
from draftwise.engine.step.scheduler import Chunk
from draftwise.engine.step.sequence import Sequence

__all__ = [
    "PromptRanks",
    "adjust_logits",
    "enter_counts",
    "find_forced",
    "find_penalties",
    "involves_host",
    "num_ranked",
    "rank_emitted",
    "rank_prompts",
]

_RANKED = (5, 20)
"""Tokens that are ranked where fewer are asked for, so that few kinds of steps are captured."""
_RANKED_ROWS = 256
"""Prompt tokens whose log-probabilities are computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRanks:
    """Log-probabilities of prompt tokens, on the device."""

    sequence: Sequence
    ranked: Ranked


def involves_host(params: SamplingParams) -> bool:
    """Whether a request's decoding steps need the host between the target's pass and the verification."""
    many = params.logprobs is not None and params.logprobs > _RANKED[-1]  # each number would have graphs of its own
    return many or needs_adjusting(params) or params.structured_outputs is not None


def num_ranked(sequences: list[Sequence]) -> int | None:
    """Return how many tokens are to be ranked at each position, one of few numbers; None: nobody wants to know."""
    most = max((each.params.logprobs for each in sequences if each.params.logprobs is not None), default=None)
    return most if most is None else next((each for each in _RANKED if each >= most), most)


def find_penalties(sequences: list[Sequence], counts: TokenCounts, device: torch.device) -> Penalties | None:
    """Return the penalties of these sequences, if any has some."""
    return Penalties.of([each.params for each in sequences], [each.row for each in sequences], counts, device)


def enter_counts(sequences: list[Sequence], counts: TokenCounts) -> None:
    """Begin to count the tokens of those sequences that have penalties."""
    if chosen := [each for each in sequences if each.params.penalises]:
        prompts = [each.request.prompt_token_ids for each in chosen]
        counts.enter([each.row for each in chosen], prompts, [each.output for each in chosen])


def adjust_logits(
    logits_BSV: Tensor,
    sequences: list[Sequence],
    draft_tokens_BK: Tensor,
    end_ids: frozenset[int],
    penalties: Penalties | None,
) -> Tensor:
    """Return the logits after what depends on the requests' history, which the host knows.

    Args:
        logits_BSV: of these sequences, then of padding.
        sequences: whose requests they are.
        draft_tokens_BK: what the rows follow.
        end_ids: end-of-sequence tokens.
        penalties: of these sequences.
    """
    padding = [SamplingRow(params=SamplingParams(temperature=0))] * (len(logits_BSV) - len(sequences))
    rows = [
        SamplingRow(
            params=sequence.params,
            output_ids=sequence.output if sequence.params.needs_history else [],
            end_ids=end_ids,
            bad_words=sequence.bad_words,
        )
        for sequence in sequences
    ]
    return adjust(logits_BSV, rows + padding, draft_tokens_BK, penalties)


def find_forced(sequences: list[Sequence], num_rows: int, *, padded: int, device: torch.device) -> Tensor | None:
    """Return the token that each target row must emit, int64 [padded, num_rows], -1 where it decides by itself; None
    where no request forces any.

    Args:
        sequences: whose requests they are; the first rows.
        num_rows: S.
        padded: B.
        device: where to.
    """
    if all(sequence.params.forced_token_ids is None for sequence in sequences):
        return None
    rows = np.full((padded, num_rows), -1, dtype=np.int64)
    for row, sequence in zip(rows, sequences, strict=False):
        ahead = (sequence.params.forced_token_ids or ())[sequence.num_output : sequence.num_output + num_rows]
        row[: len(ahead)] = ahead
    return upload(rows, device)


def rank_emitted(logits_BSV: Tensor, accepted: Accepted, k: int | None) -> Ranked | None:
    """Rank the emitted tokens, and the k likeliest ones; None: nobody wants their log-probabilities."""
    return None if k is None else rank_tokens(logits_BSV.flatten(0, 1), accepted.tokens_BS.flatten(), k)


def rank_prompts(model: CausalLM, chunks: list[Chunk], hidden_NH: Tensor) -> Iterator[PromptRanks]:
    """Rank the prompt tokens that follow the positions computed, where a request wants that.

    In pieces, because the log-probabilities of a whole chunk would take gigabytes.
    """
    row = 0
    for chunk in chunks:
        sequence = chunk.sequence
        targets = sequence.request.prompt_token_ids[chunk.start + 1 : chunk.end + 1]
        k = sequence.params.prompt_logprobs
        if k is not None and not sequence.num_output:
            for first in range(0, len(targets), _RANKED_ROWS):
                piece = targets[first : first + _RANKED_ROWS]
                logits_RV = model.logits(hidden_NH[row + first : row + first + len(piece)])
                yield PromptRanks(sequence=sequence, ranked=rank_tokens(logits_RV, upload(piece, model.device), k))
        row += chunk.length
