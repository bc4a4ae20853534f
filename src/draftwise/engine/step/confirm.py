"""Keeps the proposer up to date: passes every confirmed token once, and takes its drafts.

Shape letters: B sequences, N rows of a pass, W tokens that a step can confirm at most, K draft tokens, F features of a
token.
"""

from __future__ import annotations

from collections import abc

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.attention.pass_rows import Spans
from draftwise.engine.memory.transfer import upload
from draftwise.engine.proposers.proposer import Confirmed, PlainDecoding, Proposer
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.step.scheduler import Chunk, Sequence
from draftwise.engine.step.table import SequenceTable, View


def make_confirmations(proposer: Proposer, table: SequenceTable, *, uniform: bool) -> Confirmations:
    """Return the object that keeps a proposer up to date.

    Args:
        proposer: proposer; only this object may call it from now on.
        uniform: whether only the device knows what a step confirms (see `Spans`).
    """
    if isinstance(proposer, PlainDecoding):
        return Confirmations()
    return HostConfirmations(proposer, table) if proposer.on_host else DeviceConfirmations(proposer, table, uniform)


class Confirmations:
    """Plain decoding, without drafts. Subclasses have a proposer."""

    aux_layers: tuple[int, ...] = ()
    """Auxiliary hidden states that the target's passes must keep, see `Proposer.aux_layers`."""
    needs_tokens = False
    """Whether the host must know a step's tokens before it launches the next one."""
    fills_pages = False
    """Whether pages also hold the proposer's state."""

    def note_prompts(self, chunks: list[Chunk], features_NF: Tensor | None) -> None:
        """Record prompts that the target has just computed, with their auxiliary hidden states."""

    def notify(self) -> None:
        """Notify the proposer of the recorded prompts: before their pages change, but after their first tokens are on
        their way to the host."""

    def prepare(self, sequences: list[Sequence], k: int, size: int | None) -> None:
        """Prepare a step that drafts up to k tokens, padded to `size` if captured."""

    def draft(self, view: View, k: int) -> Draft:  # noqa: ARG002  (of the subclasses)
        """Return up to k draft tokens for each sequence of a step, given the previous step's tokens. Captured."""
        return Draft.empty(len(view.slots_B), device=view.slots_B.device)

    def end(self, sequence: Sequence, *, for_pages: bool) -> None:
        """Notify the proposer of a sequence's last tokens if it needs them, or `for_pages` to be published."""

    def release(self, slots: abc.Sequence[int]) -> None:
        """Forget the sequences in these slots."""

    def num_shareable(self, sequence: Sequence) -> int:
        """Return the number of leading tokens whose pages are complete, or will be after running steps."""
        return sequence.num_computed


class _ProposerConfirmations(Confirmations):
    """The part that does not depend on where the proposer runs."""

    def __init__(self, proposer: Proposer, table: SequenceTable, device: torch.device) -> None:
        self.aux_layers = proposer.aux_layers
        self.fills_pages = proposer.kv_bytes_per_token > 0
        self._proposer, self._table, self._device = proposer, table, device
        self._prompts: Confirmed | None = None
        self._num_notified: dict[int, int] = {}
        """Leading tokens by slot that the host has notified the proposer of, or will with `_prompts`."""

    def note_prompts(self, chunks: list[Chunk], features_NF: Tensor | None) -> None:
        chosen: list[Sequence] = []
        rows: list[int] = []
        starts, ends, first_row = [], [], 0
        for chunk in chunks:
            start, end = self._confirmed_by(chunk)
            if end > start:
                chosen.append(chunk.sequence)
                starts.append(start)
                ends.append(end)
                rows += range(first_row + start - 1 - chunk.start, first_row + end - 1 - chunk.start)
            self._num_notified[chunk.sequence.row] = max(start, end)
            first_row += chunk.length
        if chosen:
            features = None if features_NF is None else _take(features_NF, rows)
            limits_B = torch.zeros(len(chosen), dtype=torch.long, device=self._device)
            self._prompts = self._confirmed(chosen, starts, ends, features, limits_B)

    def notify(self) -> None:
        if self._prompts is not None:
            self._proposer.propose(self._prompts, 0)
            self._prompts = None

    @torch.inference_mode()
    def end(self, sequence: Sequence, *, for_pages: bool) -> None:
        if self._proposer.needs_ending or for_pages:
            self.notify()
            self._notify_rest(sequence)
            self._num_notified[sequence.row] = len(sequence.tokens)

    def release(self, slots: abc.Sequence[int]) -> None:
        for slot in slots:
            self._num_notified.pop(slot, None)
            self._proposer.release(slot)

    def num_shareable(self, sequence: Sequence) -> int:
        if not self.fills_pages or not sequence.is_decoding:
            return sequence.num_computed
        # Each step notifies of all that the step before it confirmed.
        known = len(sequence.tokens) if sequence.num_underway else self._num_notified[sequence.row]
        return min(sequence.num_computed, known - 1)  # what is kept of a token follows from the one after it, too

    def _confirmed_by(self, chunk: Chunk) -> tuple[int, int]:
        """Return which tokens are new to the proposer after a chunk: all but the one sampled last."""
        sequence = chunk.sequence
        start = self._num_notified.get(sequence.row)
        if start is None:
            start = 0 if self._proposer.needs_history else sequence.num_prefix_cached + bool(self.aux_layers)
        return start, chunk.end if chunk.is_last else chunk.end + 1

    def _notify_rest(self, sequence: Sequence) -> None:
        """Notify of all tokens of a sequence that are new to the proposer."""
        raise NotImplementedError

    def _pages(self, slots_B: Tensor) -> Tensor:
        """Return page_table_BP."""
        raise NotImplementedError

    def _confirmed(
        self,
        sequences: list[Sequence],
        starts: list[int],
        ends: list[int],
        features_NF: Tensor | None,
        limits_B: Tensor,
    ) -> Confirmed:
        """Return tokens that the host knows, on the proposer's device."""
        device = self._device
        tokens = [token for s, start, end in zip(sequences, starts, ends, strict=True) for token in s.tokens[start:end]]
        slots_B = upload([sequence.row for sequence in sequences], device)
        return Confirmed(
            slots_B=slots_B,
            spans=Spans.of(starts, [end - start for start, end in zip(starts, ends, strict=True)], device),
            tokens_N=upload(tokens, device),
            num_prompt_B=upload([sequence.num_prompt for sequence in sequences], device),
            limits_B=limits_B,
            page_table_BP=self._pages(slots_B),
            features_NF=features_NF,
            temperature_B=torch.zeros(len(sequences), device=device),
            seeds_B=torch.zeros_like(slots_B),
            histories=tuple(sequence.tokens for sequence in sequences),
        )


class DeviceConfirmations(_ProposerConfirmations):
    """The proposer drafts within a step, from the tokens in the table that the last step confirmed."""

    def __init__(self, proposer: Proposer, table: SequenceTable, uniform: bool) -> None:
        super().__init__(proposer, table, table.device)
        self._uniform = uniform

    def draft(self, view: View, k: int) -> Draft:
        """Draft on the device, from the table's confirmed tokens."""
        spans = Spans.on(view.new_start_B, view.num_new_B, view.new_tokens_BW.shape[1], uniform=self._uniform)
        new = Confirmed(
            slots_B=view.slots_B,
            spans=spans,
            tokens_N=spans.pack(view.new_tokens_BW),
            num_prompt_B=view.num_prompt_B,
            limits_B=view.limits_B,
            page_table_BP=view.page_table_BP,
            features_NF=None if view.features_BWF is None else spans.pack(view.features_BWF),
            temperature_B=view.tempering.temperature_B,
            seeds_B=view.seeds_B,
        )
        return self._proposer.propose(new, k)

    def _notify_rest(self, sequence: Sequence) -> None:
        slots_B = upload([sequence.row], self._device)
        self.draft(self._table.look_up(slots_B, k=0, all_greedy=True, truncates=False), 0)

    def _pages(self, slots_B: Tensor) -> Tensor:
        return self._table.pages(slots_B)


class HostConfirmations(_ProposerConfirmations):
    """The proposer drafts before a step, from tokens known to the host."""

    needs_tokens = True

    def __init__(self, proposer: Proposer, table: SequenceTable) -> None:
        super().__init__(proposer, table, torch.device("cpu"))
        self._draft: Draft
        """Draft for the step in preparation."""
        self._captured: dict[tuple[int, int], Draft] = {}
        """Draft buffers of captured steps, by size and k."""

    def note_prompts(self, chunks: list[Chunk], features_NF: Tensor | None) -> None:
        """Record only hidden states: a prompt's tokens come with the following ones."""
        if self.aux_layers:  # else a prompt comes with the first tokens that follow
            super().note_prompts(chunks, features_NF)

    def prepare(self, sequences: list[Sequence], k: int, size: int | None) -> None:
        """Draft on the host and copy the draft to the step's input."""
        draft = self._proposer.propose(self._confirmed_since(sequences, k), k)
        if size is None and self._table.device.type == "cpu":
            self._draft = draft
            return
        rows = np.zeros((size or len(sequences), k + 1), dtype=np.int64)
        rows[: len(sequences), :1], rows[: len(sequences), 1:] = draft.lengths_B.unsqueeze(1), draft.tokens_BK
        lengths_B1, tokens_BK = upload(rows, self._table.device).split((1, k), dim=1)
        self._draft = Draft(lengths_B=lengths_B1.squeeze(1), tokens_BK=tokens_BK)
        if size is not None:
            captured = self._captured.setdefault((size, k), self._draft)
            captured.lengths_B.copy_(self._draft.lengths_B)
            captured.tokens_BK.copy_(self._draft.tokens_BK)
            self._draft = captured

    def draft(self, view: View, k: int) -> Draft:  # noqa: ARG002  (the signature of those that draft within a step)
        """Return the draft from `prepare`."""
        return self._draft

    def _notify_rest(self, sequence: Sequence) -> None:
        self._proposer.propose(self._confirmed_since([sequence], 0), 0)

    def _pages(self, slots_B: Tensor) -> Tensor:
        return slots_B.new_zeros(len(slots_B), 0)

    def _confirmed_since(self, sequences: list[Sequence], k: int) -> Confirmed:
        """Return all that is new to the proposer."""
        starts = [self._num_notified.get(sequence.row, 0) for sequence in sequences]
        ends = [len(sequence.tokens) for sequence in sequences]
        features = None
        if self.aux_layers:
            slots_B = upload([sequence.row for sequence in sequences], self._table.device)
            view = self._table.look_up(slots_B, k=0, all_greedy=True, truncates=False)
            assert view.features_BWF is not None
            counts = [end - start for start, end in zip(starts, ends, strict=True)]
            features = torch.cat([view.features_BWF[b, :count] for b, count in enumerate(counts)])
        self._num_notified.update((s.row, end) for s, end in zip(sequences, ends, strict=True))
        return self._confirmed(sequences, starts, ends, features, self._table.find_limits(sequences, k))


def _take(features_NF: Tensor, rows: list[int]) -> Tensor:
    """Return some rows, ascending; without a copy if there are no others between them."""
    if rows[-1] - rows[0] < len(rows):
        return features_NF[rows[0] : rows[-1] + 1]
    return features_NF[upload(rows, features_NF.device)]
