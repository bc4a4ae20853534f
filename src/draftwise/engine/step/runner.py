"""Owner of the step's tensors: computes prompts, drafts, verifies, and keeps the device's table of sequences.

Shape letters: B sequences (padded to a bucket on a GPU), S = K+1 target rows a sequence, K draft tokens, N rows of a
pass, R rows of logits, C numbers that go back to the host, V vocabulary, H hidden size, F features of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.attention.plan import plan_attention
from draftwise.engine.attention.spans import Spans
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.transfer import upload
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.sampling.acceptance import Acceptance, place
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.logits import SamplingRow, adjust, needs_adjusting
from draftwise.engine.sampling.logprobs import Ranked, rank_tokens
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import Tempering
from draftwise.engine.sampling.verify import Verdict, verify
from draftwise.engine.step.capture import bucket_of
from draftwise.engine.step.graphs import Graphs
from draftwise.engine.step.launched import Launched, PromptRanks, pack
from draftwise.engine.step.scheduler import Chunk, PageChange
from draftwise.engine.step.sequence import Sequence
from draftwise.engine.step.table import SequenceTable, View

__all__ = ["Runner"]

T = TypeVar("T")

_RANKED_ROWS = 256
"""Prompt tokens whose log-probabilities are computed at once."""


class _Slots:
    """The slots of a captured step: always the same tensor, written when they change."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.slots_B = torch.zeros(size, dtype=torch.long, device=device)
        self._slots: list[int] = []

    def set(self, slots: list[int]) -> Tensor:
        if slots != self._slots:
            self.slots_B.copy_(upload(slots, self.slots_B.device))
            self._slots = slots
        return self.slots_B


@dataclass(frozen=True, slots=True)
class _Computed:
    """What the target says about a step's rows."""

    view: View
    draft: Draft
    logits_BSV: Tensor
    features_BSF: Tensor | None


class Runner:
    """Runs target and proposer over scheduled work. Nothing here waits for the device, except for what a proposer on
    the host must see, and while a graph is captured.

    Args:
        model: the target.
        kv: its pages.
        table: the device's table.
        proposer: None decodes plainly.
        acceptance: the rule by which drafts stand.
        end_ids: end-of-sequence tokens.
        capture_sizes: numbers of sequences that steps are padded to and captured for; empty captures nothing.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: PagedKV,
        table: SequenceTable,
        proposer: Proposer | None,
        *,
        acceptance: Acceptance,
        end_ids: frozenset[int],
        capture_sizes: tuple[int, ...] = (),
    ) -> None:
        self.model, self.kv, self.table = model, kv, table
        self.graphs = Graphs(enabled=bool(capture_sizes))
        self._proposer = proposer
        self._taps = proposer.taps if proposer else ()
        self._acceptance = place(acceptance, model.device)
        self._end_ids = end_ids
        self._capture_sizes = capture_sizes
        self._untold: Confirmed | None = None
        """News of prompts that the proposer has not been told yet."""
        self._kept: Tensor | None = None
        """Logits of captured steps that the host has a part in: one place for all graphs."""
        self._slots: dict[int, _Slots] = {}
        self._drafts: dict[tuple[int, int], Draft] = {}
        """Where drafts from the host are put, by bucket and k."""

    @torch.inference_mode()
    def update(self, released_slots: Items[int], changes: Items[PageChange]) -> None:
        """Enter into the table what the scheduler decided."""
        self._tell_prompts()
        if released_slots:
            self.table.release(released_slots)
            if self._proposer is not None:
                for slot in released_slots:
                    self._proposer.release(slot)
        if changes:
            self.table.give_pages(changes)

    @torch.inference_mode()
    def prefill(self, chunks: list[Chunk]) -> Launched:
        """Compute prompts; sequences whose prompt is complete sample a token and can decode from then on."""
        spans = Spans.of([c.start for c in chunks], [c.length for c in chunks], self.model.device)
        tokens = [token for c in chunks for token in c.sequence.tokens[c.start : c.end]]
        table_BP = self.table.pages(upload([c.sequence.row for c in chunks], self.model.device))
        hidden_NH, features_NF = self._forward(upload(tokens, self.model.device), spans, table_BP)
        launched = self._sample_first(chunks, spans, hidden_NH, features_NF)
        self._untold = self._news_of_prompts(chunks, features_NF)
        return launched

    @torch.inference_mode()
    def decode(self, sequences: list[Sequence], k: int) -> Launched:
        """Draft up to k tokens for each sequence, verify them and move on by what stands."""
        params = [sequence.params for sequence in sequences]
        all_greedy, truncates = Tempering.flags(params)
        size = self._bucket(len(sequences))
        slots_B = self._slots_in(size, sequences)
        given = self._draft_on_host(sequences, k, size) if self._proposer and self._proposer.on_host else None

        def compute() -> _Computed:
            return self._compute(self.table.look_up(slots_B, k=k, all_greedy=all_greedy, truncates=truncates), given, k)

        def step() -> Tensor:
            computed = compute()
            return self._judge(computed, computed.logits_BSV)[1]

        key = (size, k, all_greedy, truncates)
        if not any(needs_adjusting(each) or each.logprobs is not None for each in params):
            return Launched(sequences, self._run(size, ("step", *key), step), bound=k + 1)
        computed = self._run(size, ("compute", *key), lambda: self._keep(compute()) if size else compute())
        verdict, packed = self._judge(computed, self._adjusted(computed, sequences))
        return Launched(sequences, packed, bound=k + 1, ranked=_rank(computed.logits_BSV, verdict, params))

    @torch.inference_mode()
    def tell_ending(self, sequence: Sequence) -> None:
        """Tell the proposer of the last tokens that a sequence was given."""
        assert self._proposer is not None
        self._tell_prompts()
        if self._proposer.on_host:
            self._proposer.propose(self._confirm_on_host([sequence], 0), 0)
        else:
            slots_B = upload([sequence.row], self.model.device)
            self._proposer.propose(self._confirm(self.table.look_up(slots_B, k=0, all_greedy=True, truncates=False)), 0)

    def _bucket(self, num_seqs: int) -> int | None:
        """Return to how many sequences a step is padded; None: it is not captured."""
        return bucket_of(num_seqs, self._capture_sizes)

    def _run(self, size: int | None, key: Hashable, work: Callable[[], T]) -> T:
        return work() if size is None else self.graphs.run(key, work)

    def _slots_in(self, size: int | None, sequences: list[Sequence]) -> Tensor:
        """Return the sequences' slots, padded to a size."""
        slots = [sequence.row for sequence in sequences]
        if size is None:
            return upload(slots, self.model.device)
        if size not in self._slots:
            self._slots[size] = _Slots(size, self.model.device)
        return self._slots[size].set(slots + [self.table.padding_slot] * (size - len(slots)))

    def _compute(self, view: View, given: Draft | None, k: int) -> _Computed:
        """Draft, and run the target over each sequence's last token and its draft."""
        num_seqs, device = len(view.slots_B), self.model.device
        if given is not None:
            draft = given
        elif self._proposer is not None:
            draft = self._proposer.propose(self._confirm(view), k)
        else:
            draft = Draft.empty(num_seqs, device=device)
        width = draft.tokens_BK.shape[1] + 1
        spans = Spans.on(view.position_B, draft.lengths_B + 1, width)
        draft = draft if spans.width == width else draft.cut(spans.width - 1)
        tokens_N = spans.pack(torch.cat((view.last_B.unsqueeze(1), draft.tokens_BK), dim=1))
        hidden_NH, features_NF = self._forward(tokens_N, spans, view.page_table_BP)
        return _Computed(
            view=view,
            draft=draft,
            logits_BSV=spans.unpack(self.model.logits(hidden_NH)),
            features_BSF=None if features_NF is None else spans.unpack(features_NF),
        )

    def _keep(self, computed: _Computed) -> _Computed:
        """Put the logits where they stay after the step, without a tensor for every graph."""
        logits_BSV = computed.logits_BSV
        if self._kept is None:  # made by the first such step, which is not captured
            num_rows = self._capture_sizes[-1] * self.table.width
            self._kept = logits_BSV.new_empty(num_rows * logits_BSV.shape[-1])
        kept_BSV = self._kept[: logits_BSV.numel()].view_as(logits_BSV)
        return replace(computed, logits_BSV=kept_BSV.copy_(logits_BSV))

    def _judge(self, computed: _Computed, logits_BSV: Tensor) -> tuple[Verdict, Tensor]:
        """Verify the drafts and make final what stands; return that, and what the host is told of it."""
        view = computed.view
        verdict = verify(
            logits_BSV,
            computed.draft,
            tempering=view.tempering,
            seeds_B=view.seeds_B,
            positions_B=view.num_output_B,
            acceptance=self._acceptance,
        )
        return verdict, self.table.advance(view, computed.draft, verdict, computed.features_BSF)

    def _forward(self, tokens_N: Tensor, spans: Spans, page_table_BP: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the target; return hidden_NH and the tapped states beside each other."""
        plan = plan_attention(spans, page_table_BP, block_size=self.kv.block_size)
        features_NF = None
        if self._taps:
            width = len(self._taps) * self.model.shape.hidden_size
            features_NF = torch.empty(spans.num_rows, width, dtype=self.model.dtype, device=self.model.device)
        hidden_NH, _ = self.model(tokens_N, plan.positions_N, self.kv, plan, self._taps, features_NF)
        return hidden_NH, features_NF

    def _sample_first(
        self, chunks: list[Chunk], spans: Spans, hidden_NH: Tensor, features_NF: Tensor | None
    ) -> Launched:
        """Sample the first token of each sequence whose prompt is complete, and let it decode."""
        device = self.model.device
        prompts = tuple(self._rank_prompts(chunks, hidden_NH))
        final = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        sequences = [chunks[i].sequence for i in final]
        draft = Draft.empty(len(final), device=device)
        if not final:
            return Launched([], draft.tokens_BK, bound=1, prompts=prompts)
        params = [sequence.params for sequence in sequences]
        rows_B = spans.last_row_B if len(final) == len(chunks) else spans.last_row_B[upload(final, device)]
        logits_B1V = self.model.logits(hidden_NH[rows_B]).unsqueeze(1)
        verdict = verify(
            adjust(logits_B1V, [self._sampling_row(each) for each in sequences], draft.tokens_BK),
            draft,
            tempering=Tempering.of(params, device),
            seeds_B=upload([sequence.seed for sequence in sequences], device),
            positions_B=upload([sequence.num_output for sequence in sequences], device),
            acceptance=self._acceptance,
        )
        self.table.enter(sequences, verdict.tokens_BS[:, 0], None if features_NF is None else features_NF[rows_B])
        ranked = _rank(logits_B1V, verdict, params)
        return Launched(sequences, pack(draft, verdict), bound=1, ranked=ranked, prompts=prompts)

    def _adjusted(self, computed: _Computed, sequences: list[Sequence]) -> Tensor:
        """Return the logits after what depends on the requests' history, which the host knows."""
        padding = [SamplingRow(params=SamplingParams(temperature=0))] * (len(computed.logits_BSV) - len(sequences))
        rows = [self._sampling_row(sequence) for sequence in sequences] + padding
        return adjust(computed.logits_BSV, rows, computed.draft.tokens_BK)

    def _sampling_row(self, sequence: Sequence) -> SamplingRow:
        return SamplingRow(
            params=sequence.params,
            prompt_ids=sequence.request.prompt_token_ids,
            output_ids=sequence.output if sequence.params.needs_history else [],
            end_ids=self._end_ids,
            bad_words=sequence.bad_words,
        )

    def _rank_prompts(self, chunks: list[Chunk], hidden_NH: Tensor) -> Iterator[PromptRanks]:
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
                    logits_RV = self.model.logits(hidden_NH[row + first : row + first + len(piece)])
                    ranked = rank_tokens(logits_RV, upload(piece, self.model.device), k)
                    yield PromptRanks(sequence=sequence, ranked=ranked)
            row += chunk.length

    def _tell_prompts(self) -> None:
        """Tell the proposer of the prompts last computed: before anything else happens to their pages, but not before
        their first tokens are on their way to the host."""
        if self._untold is not None:
            assert self._proposer is not None
            self._proposer.propose(self._untold, 0)
            self._untold = None

    def _news_of_prompts(self, chunks: list[Chunk], features_NF: Tensor | None) -> Confirmed | None:
        """Return the tokens of prompts that the proposer can be told now."""
        proposer = self._proposer
        if proposer is None or (proposer.on_host and not self._taps):
            return None
        told: list[int] = []
        rows: list[int] = []
        starts, ends, first_row = [], [], 0
        for i, chunk in enumerate(chunks):
            start, end = self._news_of(chunk)
            if end > start:
                told.append(i)
                starts.append(start)
                ends.append(end)
                rows += range(first_row + start - 1 - chunk.start, first_row + end - 1 - chunk.start)
            chunk.sequence.num_told = max(start, end)
            first_row += chunk.length
        if not told:
            return None
        sequences = [chunks[i].sequence for i in told]
        features = None if features_NF is None else features_NF[upload(rows, features_NF.device)]
        return self._confirmed(sequences, starts, ends, features)

    def _news_of(self, chunk: Chunk) -> tuple[int, int]:
        """Return which tokens of a sequence the proposer can be told after a chunk: all but the one sampled last."""
        assert self._proposer is not None
        start = chunk.sequence.num_told
        if start is None:
            start = 0 if self._proposer.needs_history else chunk.sequence.num_spared + bool(self._taps)
        return start, chunk.end if chunk.is_last else chunk.end + 1

    def _confirm(self, view: View) -> Confirmed:
        """Return what the last step made final of each sequence."""
        spans = Spans.on(view.news_start_B, view.num_news_B, view.news_BW.shape[1])
        return Confirmed(
            slots_B=view.slots_B,
            spans=spans,
            tokens_N=spans.pack(view.news_BW),
            num_prompt_B=view.num_prompt_B,
            limits_B=view.limits_B,
            page_table_BP=view.page_table_BP,
            features_NF=None if view.features_BWF is None else spans.pack(view.features_BWF),
            temperature_B=view.tempering.temperature_B,
            seeds_B=view.seeds_B,
        )

    def _draft_on_host(self, sequences: list[Sequence], k: int, size: int | None) -> Draft:
        """Return the draft of a proposer that looks at tokens, on the device and padded to a size."""
        assert self._proposer is not None
        draft = self._proposer.propose(self._confirm_on_host(sequences, k), k)
        if size is None and self.model.device.type == "cpu":
            return draft
        rows = np.zeros((size or len(sequences), k + 1), dtype=np.int64)
        rows[: len(sequences), :1], rows[: len(sequences), 1:] = draft.lengths_B.unsqueeze(1), draft.tokens_BK
        lengths_B1, tokens_BK = upload(rows, self.model.device).split((1, k), dim=1)
        draft = Draft(lengths_B=lengths_B1.squeeze(1), tokens_BK=tokens_BK)
        if size is None:
            return draft
        captured = self._drafts.setdefault((size, k), draft)
        captured.lengths_B.copy_(draft.lengths_B)
        captured.tokens_BK.copy_(draft.tokens_BK)
        return captured

    def _confirm_on_host(self, sequences: list[Sequence], k: int) -> Confirmed:
        """Return what a proposer on the host has not been told of sequences whose tokens the host knows."""
        assert self._proposer is not None
        starts = [sequence.num_told or 0 for sequence in sequences]
        ends = [len(sequence.tokens) for sequence in sequences]
        features = None
        if self._taps:
            slots_B = upload([sequence.row for sequence in sequences], self.model.device)
            view = self.table.look_up(slots_B, k=0, all_greedy=True, truncates=False)
            assert view.features_BWF is not None
            counts = [end - start for start, end in zip(starts, ends, strict=True)]
            features = torch.cat([view.features_BWF[b, :count] for b, count in enumerate(counts)])
        limits = [self._limit(sequence, k) for sequence in sequences]
        for sequence, end in zip(sequences, ends, strict=True):
            sequence.num_told = end
        return self._confirmed(sequences, starts, ends, features, limits=limits)

    def _limit(self, sequence: Sequence, k: int) -> int:
        """Return how many guesses a sequence can use whose tokens the host knows, as `SequenceTable.look_up` does."""
        room = min(len(sequence.pages) * self.kv.block_size - len(sequence.tokens), sequence.num_left - 1)
        own = sequence.params.num_speculative_tokens
        return max(min(k, room, k if own is None else own), 0)

    def _confirmed(
        self,
        sequences: list[Sequence],
        starts: list[int],
        ends: list[int],
        features_NF: Tensor | None,
        *,
        limits: list[int] | None = None,
    ) -> Confirmed:
        """Return tokens that the host knows, where the proposer wants them."""
        assert self._proposer is not None
        device = torch.device("cpu") if self._proposer.on_host else self.model.device
        tokens = [token for s, start, end in zip(sequences, starts, ends, strict=True) for token in s.tokens[start:end]]
        slots_B = upload([sequence.row for sequence in sequences], device)
        return Confirmed(
            slots_B=slots_B,
            spans=Spans.of(starts, [end - start for start, end in zip(starts, ends, strict=True)], device),
            tokens_N=upload(tokens, device),
            num_prompt_B=upload([sequence.num_prompt for sequence in sequences], device),
            limits_B=upload(limits or [0] * len(sequences), device),
            page_table_BP=slots_B.new_zeros(len(slots_B), 0) if self._proposer.on_host else self.table.pages(slots_B),
            features_NF=features_NF,
            temperature_B=torch.zeros(len(sequences), device=device),
            seeds_B=torch.zeros_like(slots_B),
            histories=tuple(sequence.tokens for sequence in sequences),
        )


def _rank(logits_BSV: Tensor, verdict: Verdict, params: list[SamplingParams]) -> Ranked | None:
    """Rank the emitted tokens, if any request wants their log-probabilities."""
    wanted = [each.logprobs for each in params if each.logprobs is not None]
    return rank_tokens(logits_BSV.flatten(0, 1), verdict.tokens_BS.flatten(), max(wanted)) if wanted else None
