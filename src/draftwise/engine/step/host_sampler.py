"""Samples tokens with the host's help: requests with history-dependent logits, grammars, first tokens.

Shape letters: B sequences (perhaps padded), S = K+1 target rows a sequence, K draft tokens, V vocabulary.
"""

from __future__ import annotations

from collections import abc

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.acceptance_rules import Rule, Standard
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.logits import Penalties, SamplingRow, TokenCounts, adjust
from draftwise.engine.sampling.logprobs import TokenRanks, rank_tokens
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import Tempering
from draftwise.engine.sampling.verify import AcceptedTokens, verify
from draftwise.engine.step.scheduler import Sequence


class HostSampler:
    """Verifies drafts with all sampling parameters. Never captured."""

    def __init__(
        self,
        rule: Rule,
        *,
        end_ids: frozenset[int],
        grammars: Grammars,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.grammars = grammars
        self._rule, self._end_ids, self._device = rule, end_ids, device
        self._counts = TokenCounts(num_slots, vocab_size, device)

    def sample_first(
        self, sequences: list[Sequence], logits_B1V: Tensor
    ) -> tuple[Draft, AcceptedTokens, TokenRanks | None]:
        """Sample the first token after these sequences' prompts. Returns the same as `verify`."""
        if counted := [each for each in sequences if each.params.penalizes]:
            prompts = [each.request.prompt_token_ids for each in counted]
            self._counts.enter([each.row for each in counted], prompts, [each.output for each in counted])
        return self.verify(
            sequences,
            logits_B1V,
            Draft.empty(len(sequences), device=self._device),
            tempering=Tempering.of([each.params for each in sequences], self._device),
            seeds_B=upload([each.seed for each in sequences], self._device),
            positions_B=upload([each.num_output for each in sequences], self._device),
        )

    def verify(
        self,
        sequences: list[Sequence],
        logits_BSV: Tensor,
        draft: Draft,
        *,
        tempering: Tempering,
        seeds_B: Tensor,
        positions_B: Tensor,
    ) -> tuple[Draft, AcceptedTokens, TokenRanks | None]:
        """Verify a draft. The first rows of all tensors belong to `sequences`, the others are padding.

        Args:
            logits_BSV: the model's logits; changed in place if a grammar excludes tokens.
            tempering: see `verify.verify`, like the last two.

        Returns:
            the draft without tokens excluded by grammars; the accepted tokens; and log-probabilities under the grammar
            (as in vLLM), if requested.
        """
        allowed = self.grammars.constrain(logits_BSV, [sequence.grammar for sequence in sequences], draft)
        params, slots = [sequence.params for sequence in sequences], [sequence.row for sequence in sequences]
        penalties = Penalties.of(params, slots, self._counts, self._device)
        padded, num_rows = logits_BSV.shape[:2]
        accepted = verify(
            adjust(logits_BSV, self._rows(sequences, padded), draft.tokens_BK, penalties),
            # Rejection sampling must know all that was drawn; a lossy rule accepts nothing that it does not see.
            draft if isinstance(self._rule, Standard) else allowed,
            tempering=tempering,
            seeds_B=seeds_B,
            positions_B=positions_B,
            acceptance=self._rule,
            forced_BS=self._find_forced(sequences, padded, num_rows),
        )
        if penalties is not None:
            penalties.count(accepted.tokens_BS)
        k = max((each.traits.num_ranked for each in sequences if each.traits.num_ranked is not None), default=None)
        ranked = None if k is None else rank_tokens(logits_BSV.flatten(0, 1), accepted.tokens_BS.flatten(), k)
        return allowed, accepted, ranked

    def _rows(self, sequences: list[Sequence], padded: int) -> abc.Sequence[SamplingRow]:
        """Return what the logits of `padded` sequences depend on besides the model."""
        rows = [
            SamplingRow(
                params=sequence.params,
                output_ids=sequence.output if sequence.params.needs_history else [],
                end_ids=self._end_ids,
                bad_words=sequence.bad_words,
            )
            for sequence in sequences
        ]
        return rows + [SamplingRow(params=SamplingParams(temperature=0))] * (padded - len(rows))

    def _find_forced(self, sequences: list[Sequence], padded: int, num_rows: int) -> Tensor | None:
        """Return the token that each target row must emit, int64 [padded, num_rows], -1 where it decides by itself;
        None where no request forces any."""
        if all(sequence.params.forced_token_ids is None for sequence in sequences):
            return None
        rows = np.full((padded, num_rows), -1, dtype=np.int64)
        for row, sequence in zip(rows, sequences, strict=False):
            ahead = (sequence.params.forced_token_ids or ())[sequence.num_output : sequence.num_output + num_rows]
            row[: len(ahead)] = ahead
        return upload(rows, self._device)
