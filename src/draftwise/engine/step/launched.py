"""Holds a launched step: its sequences, and its outcome once the device is done.

Shape letters: B sequences (perhaps padded), S = K+1 target rows a sequence, K draft tokens, C = 2 + S + K numbers of a
sequence, R = B * S rows of logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.engine_outputs import RankedRow
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.logprobs import TokenRanks
from draftwise.engine.sampling.verify import AcceptedTokens
from draftwise.engine.step.scheduler import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a step for one sequence."""

    sequence: Sequence
    emitted: list[int]
    """Accepted draft tokens and the token after them."""
    drafted: list[int]
    ranked: list[RankedRow] | None = None
    """Rows of the emitted tokens, if their log-probabilities are requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRanks:
    """Log-probabilities of prompt tokens, on the device."""

    sequence: Sequence
    ranked: TokenRanks


def pack(draft: Draft, accepted: AcceptedTokens) -> Tensor:
    """Return all numbers of a step that the host needs, [B, C], for a single copy."""
    counts_B2 = torch.stack((accepted.num_accepted_B + 1, draft.lengths_B), dim=1)
    return torch.cat((counts_B2, accepted.tokens_BS, draft.tokens_BK), dim=1)


class Readback:
    """Tensors being copied to the host; `wait` returns them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tensors
        if tensors[0].is_cuda:
            self._host = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            )
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> tuple[Tensor, ...]:
        """Return the tensors on the host, with their values when the readback was created."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._host


class LaunchedStep:
    """A step whose results are being copied to the host.

    Args:
        sequences: its sequences, in the first rows of `packed`.
        packed: result of `pack`; None if no sequence samples.
        bound: maximum tokens that each can get.
        ranked: ranks of all R rows, if any sequence needs log-probabilities.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        packed: Tensor,
        *,
        bound: int,
        ranked: TokenRanks | None = None,
        prompts: tuple[PromptRanks, ...] = (),
    ) -> None:
        self.bound = bound
        self._owners = [(sequence, sequence.life) for sequence in sequences]
        self._prompts = [(prompt.sequence, prompt.sequence.life) for prompt in prompts]
        every = [ranked, *(prompt.ranked for prompt in prompts)]
        tensors = [t for r in every if r is not None for t in (r.ids_RT, r.logprobs_RT, r.ranks_R)]
        self._has_ranks = ranked is not None
        self._readback = Readback(packed, *tensors)

    @property
    def prompts(self) -> list[Sequence]:
        """Sequences whose prompts this step ranked, except those preempted or aborted since."""
        return list({sequence: None for sequence, life in self._prompts if sequence.life == life})

    def collect(self) -> Iterator[Outcome]:
        """Wait for the device; yield the outcome of every sequence that was not preempted or aborted meanwhile."""
        packed_BC, *tensors = self._readback.wait()
        every = [
            TokenRanks(ids_RT=ids_RT, logprobs_RT=logprobs_RT, ranks_R=ranks_R)
            for ids_RT, logprobs_RT, ranks_R in zip(*[iter(tensors)] * 3, strict=True)
        ]
        ranked = every.pop(0).rows() if self._has_ranks else None
        for (sequence, life), prompt_ranks in zip(self._prompts, every, strict=True):
            if sequence.life == life:  # neither aborted nor preempted since
                sequence.prompt_ranks += prompt_ranks.rows()
        num_rows = (packed_BC.shape[1] - 1) // 2  # C = 2 + S + (S - 1)
        for b, ((sequence, life), row) in enumerate(zip(self._owners, packed_BC.tolist(), strict=False)):
            if sequence.life == life:
                emitted = row[2 : 2 + row[0]]
                mine = None
                if ranked is not None and sequence.params.logprobs is not None:
                    mine = ranked[b * num_rows : b * num_rows + len(emitted)]
                drafted = row[2 + num_rows : 2 + num_rows + row[1]]
                yield Outcome(sequence=sequence, emitted=emitted, drafted=drafted, ranked=mine)
