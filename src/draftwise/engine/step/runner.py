"""Owner of the step's tensors: computes prompts, drafts, verifies, and keeps the device's table of sequences.

Shape letters: B sequences (padded to a bucket on a GPU), S = K+1 target rows a sequence, K draft tokens, N rows of a
pass, R rows of logits, V vocabulary, H hidden size, F features of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.transfer import upload
from draftwise.engine.models import CausalLM
from draftwise.engine.sampling.acceptance import Acceptance, Standard, place
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.logprobs import Ranked
from draftwise.engine.sampling.penalties import TokenCounts
from draftwise.engine.sampling.tempering import Tempering
from draftwise.engine.sampling.verify import Accepted, verify
from draftwise.engine.step.capture import bucket_of
from draftwise.engine.step.confirm import Confirmations
from draftwise.engine.step.graphs import Graphs
from draftwise.engine.step.host_part import (
    PromptRanks,
    adjust_logits,
    enter_counts,
    find_forced,
    find_penalties,
    involves_host,
    num_ranked,
    rank_emitted,
    rank_prompts,
)
from draftwise.engine.step.launched import Launched, pack
from draftwise.engine.step.prompts import Beside, Decoding, PromptBatch, PromptSize, choose_size
from draftwise.engine.step.scheduler import Chunk, Schedule
from draftwise.engine.step.sequence import Sequence
from draftwise.engine.step.table import SequenceTable, View
from draftwise.engine.step.threads import StepThreads

__all__ = ["Runner"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _StepShape:
    """What decoding steps have in common that launch the same kernels."""

    size: int | None
    """Sequences, padding included; None: as many as there are, and nothing is captured."""
    k: int
    all_greedy: bool
    truncates: bool
    num_ranked: int | None
    """See `host_part.num_ranked`."""


@dataclass(frozen=True, slots=True)
class _Computed:
    """What the target says about a step's rows."""

    view: View
    draft: Draft
    logits_BSV: Tensor
    features_BSF: Tensor | None


class Runner:
    """Runs target and proposer over scheduled work. Nothing here waits for the device, except for what a proposer on
    the host or a grammar must see, and while a graph is captured.

    Args:
        model: the target.
        kv: its pages.
        table: the device's table.
        confirmations: what keeps the proposer up to date.
        acceptance: the rule by which draft tokens are accepted.
        end_ids: end-of-sequence tokens.
        grammars: what keeps structured output to its grammar.
        uniform: whether steps have uniform rows, whose lengths only the device knows (see `Spans`).
        capture_sizes: numbers of sequences that steps are padded to, and captured for on a GPU; empty: neither.
        prompt_sizes: likewise of passes over prompts, in ascending order; empty: they are not, and prompts and
            decoding sequences do not share a pass.
        max_num_rows: rows of a pass that they share at most.
        threads: how many compute a step; None: always as many as torch has.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: PagedKV,
        table: SequenceTable,
        confirmations: Confirmations,
        *,
        acceptance: Acceptance,
        end_ids: frozenset[int],
        grammars: Grammars,
        uniform: bool,
        capture_sizes: tuple[int, ...] = (),
        prompt_sizes: tuple[PromptSize, ...] = (),
        max_num_rows: int = 0,
        threads: StepThreads | None = None,
    ) -> None:
        self.model, self.kv, self.table, self.confirmations = model, kv, table, confirmations
        self.graphs = Graphs(enabled=bool(capture_sizes) and model.device.type == "cuda")
        self._acceptance = place(acceptance, model.device)
        self._end_ids = end_ids
        self.grammars = grammars
        self._uniform = uniform
        self.capture_sizes, self.prompt_sizes, self.max_num_rows = capture_sizes, prompt_sizes, max_num_rows
        self.threads = threads or StepThreads()
        self._kept: Tensor | None = None
        """Logits of captured steps that the host has a part in: one place for all graphs."""
        self._slots: dict[int, _Slots] = {}
        self._decoding: dict[tuple[int, int], Decoding] = {}
        self._batches: dict[PromptSize, PromptBatch] = {}
        self._passed: tuple[Tensor, Tensor | None] | None = None
        """What a captured pass over prompts returns: one place for all sizes."""
        self._counts = TokenCounts(table.padding_slot, model.shape.vocab_size, model.device)

    @torch.inference_mode()
    def run(self, schedule: Schedule) -> tuple[Launched, ...]:
        """Launch a step: first what the scheduler decided enters the table, then prompts, then decoding."""
        with self.threads.computing(prompt_rows=sum(chunk.length for chunk in schedule.chunks)):
            return self._launch(schedule)

    @torch.inference_mode()
    def surround(self, schedule: Schedule) -> None:
        """Launch what comes before and after a pass that decoding sequences share with prompts, and not the pass."""
        with self.threads.computing(prompt_rows=0):
            self._enter(schedule)
            shape, decoding = self._draft_beside(schedule.decodes, schedule.k)
            self._end_beside(schedule.decodes, shape, decoding)

    def _launch(self, schedule: Schedule) -> tuple[Launched, ...]:
        self._enter(schedule)
        chunks, decodes, k = schedule.chunks, schedule.decodes, schedule.k
        if chunks and decodes and (size := self._size_of(chunks, decodes, k)) is not None:
            return self._prefill_beside(chunks, decodes, k, size)
        prompts = (self._prefill(chunks),) if chunks else ()
        return (*prompts, self._decode(decodes, k)) if decodes else prompts

    def _enter(self, schedule: Schedule) -> None:
        """Enter what the scheduler decided into the table."""
        self.confirmations.notify()
        if schedule.released_slots:
            self.table.release(schedule.released_slots)
            self.confirmations.release(schedule.released_slots)
        if schedule.page_changes:
            self.table.give_pages(schedule.page_changes)

    def _size_of(self, chunks: list[Chunk], decodes: list[Sequence], k: int) -> PromptSize | None:
        """Return what `choose_size` does; None also for prompts of which all rows are read."""
        if _ranks_prompts(chunks):
            return None
        beside = None
        if decodes:
            padded = bucket_of(len(decodes), self.capture_sizes)
            if padded is None:
                return None
            longest = max(len(sequence.tokens) for sequence in decodes)
            beside = Beside(count=len(decodes), padded=padded, width=k + 1, longest=longest)
        reach = self.table.reach
        return choose_size(chunks, self.prompt_sizes, reach=reach, beside=beside, max_num_rows=self.max_num_rows)

    def _prefill(self, chunks: list[Chunk]) -> Launched:
        """Compute prompts; sequences whose prompt is complete sample a token and can decode from then on."""
        if (size := self._size_of(chunks, [], 0)) is not None:
            batch = self._batch_of(size)
            batch.set(chunks)
            last_CH, features_NF = self.graphs.run(("prompts", size), partial(self._pass_over, batch))
            return self._end_prompts(chunks, last_CH[: len(chunks)], features_NF)
        device = self.model.device
        spans = Spans.of([c.start for c in chunks], [c.length for c in chunks], device)
        tokens_N = upload([token for c in chunks for token in c.sequence.tokens[c.start : c.end]], device)
        pages_CP = self.table.pages(upload([c.sequence.row for c in chunks], device))
        if not _ranks_prompts(chunks):
            wanted = spans.last_row_B, spans.ends()
            return self._end_prompts(chunks, *self._forward(tokens_N, spans, pages_CP, wanted=wanted))
        hidden_NH, features_NF = self._forward(tokens_N, spans, pages_CP)
        ranks = tuple(rank_prompts(self.model, chunks, hidden_NH))
        return self._end_prompts(chunks, hidden_NH[spans.last_row_B], features_NF, ranks)

    def _prefill_beside(
        self, chunks: list[Chunk], sequences: list[Sequence], k: int, size: PromptSize
    ) -> tuple[Launched, Launched]:
        """Compute prompts, and draft and verify for decoding sequences, in one pass of the target: it reads the
        weights once, and more rows make better use of a GPU. What comes before and after is captured by itself, and the
        pass too if it has few rows."""
        shape, decoding = self._draft_beside(sequences, k)
        is_captured = size.num_rows <= self.prompt_sizes[-1].num_rows
        batch = self._batch_of(size) if is_captured else self._make_batch(size, max(each.length for each in chunks))
        batch.set(chunks, [sequence.row for sequence in sequences], decoding)
        if is_captured:
            hidden_RH, features_NF = self.graphs.run(("prompts", size), partial(self._pass_over, batch))
        else:
            hidden_RH, features_NF = self._pass_over_many(batch)
        last_CH = hidden_RH[size.num_decodes * size.width :][: len(chunks)]
        features_NF = None if features_NF is None else features_NF[len(sequences) * size.width :]
        prompts = self._end_prompts(chunks, last_CH, features_NF)
        return prompts, self._end_beside(sequences, shape, decoding)

    def _draft_beside(self, sequences: list[Sequence], k: int) -> tuple[_StepShape, Decoding]:
        """Draft for a shared pass; return which kernels end the step, and where the drafts of its size are kept."""
        shape, slots_B = self._prepare(sequences, k)
        assert shape.size is not None
        if (shape.size, k) not in self._decoding:
            self._decoding[shape.size, k] = Decoding(slots_B, k)
        decoding = self._decoding[shape.size, k]
        # Drafts are not drawn here, so that they do not depend on how tokens are sampled.
        drafted = _StepShape(shape.size, k, all_greedy=True, truncates=False, num_ranked=None)
        self._captured("draft", drafted, partial(self._draft, drafted, decoding))
        return shape, decoding

    def _end_beside(self, sequences: list[Sequence], shape: _StepShape, decoding: Decoding) -> Launched:
        """Verify what a shared pass says about its decoding sequences."""
        read = partial(self._read_passed, shape, decoding)
        return self._conclude(sequences, shape, read, parts=("end", "logits"))

    def _draft(self, shape: _StepShape, decoding: Decoding) -> None:
        """Draft for each sequence, and note where it is."""
        view = self._look_up(decoding.slots_B, shape)
        decoding.set(view, self.confirmations.draft(view, shape.k))

    def _read_passed(self, shape: _StepShape, decoding: Decoding) -> _Computed:
        """Return what a pass over prompts and decoding sequences says about the latter, whose rows are its first."""
        hidden_RH, features_NF = self._rooms()
        num_seqs, width = len(decoding.slots_B), shape.k + 1
        rows_BSF = None if features_NF is None else features_NF[: num_seqs * width].unflatten(0, (num_seqs, width))
        return _Computed(
            view=self._look_up(decoding.slots_B, shape),
            draft=decoding.draft,
            logits_BSV=self.model.logits(hidden_RH[: num_seqs * width]).unflatten(0, (num_seqs, width)),
            features_BSF=rows_BSF,
        )

    def _end_prompts(
        self,
        chunks: list[Chunk],
        last_CH: Tensor,
        features_NF: Tensor | None,
        ranks: tuple[PromptRanks, ...] = (),
    ) -> Launched:
        """Sample after prompts that are complete, and tell the proposer of all of them.

        Args:
            chunks: of the prompts.
            last_CH: the hidden state of the last row of each.
            features_NF: the auxiliary hidden states of all rows, or of more.
            ranks: of prompt tokens.
        """
        launched = self._sample_first(chunks, last_CH, features_NF, ranks)
        self.confirmations.note_prompts(chunks, features_NF)
        return launched

    def _batch_of(self, size: PromptSize) -> PromptBatch:
        if size not in self._batches:
            self._batches[size] = self._make_batch(size)
        return self._batches[size]

    def _make_batch(self, size: PromptSize, longest: int | None = None) -> PromptBatch:
        return PromptBatch(size, padding_slot=self.table.padding_slot, device=self.model.device, longest=longest)

    def _pass_over(self, batch: PromptBatch) -> tuple[Tensor, Tensor | None]:
        """Compute what is laid out for a graph; return what `_forward` does, where it stays after the graph, without
        tensors for each of them."""
        kept_RH, features_NF = self._rooms()
        features_NF = None if features_NF is None else features_NF[: batch.size.num_rows]
        pages_BP = self.table.pages(batch.slots_B)
        hidden_RH, features_NF = self._forward(batch.tokens_N, batch.spans, pages_BP, features_NF, batch.wanted)
        return kept_RH[: len(hidden_RH)].copy_(hidden_RH), features_NF

    def _pass_over_many(self, batch: PromptBatch) -> tuple[Tensor, Tensor | None]:
        """Compute more rows than graphs have; return what `_forward` does, and keep what is of decoding sequences."""
        num_rows = batch.size.num_decodes * batch.size.width
        hidden_RH, features_NF = self._forward(
            batch.tokens_N, batch.spans, self.table.pages(batch.slots_B), wanted=batch.wanted
        )
        for room, rows in zip(self._rooms(), (hidden_RH, features_NF), strict=True):
            if room is not None and rows is not None:
                num_kept = min(num_rows, len(room), len(rows))
                room[:num_kept].copy_(rows[:num_kept])
        return hidden_RH, features_NF

    def _rooms(self) -> tuple[Tensor, Tensor | None]:
        """Return where passes over prompts leave hidden states that are read, and auxiliary ones: made by the first,
        which is not captured."""
        if self._passed is None:
            num_aux_layers = len(self.confirmations.aux_layers)
            most_wanted = max(size.num_wanted for size in self.prompt_sizes)
            most_rows = max(most_wanted, *(size.num_rows for size in self.prompt_sizes))
            # A step that is padded further than a pass finds rows here that it has not written, but finite ones.
            features_NF = self._make_rows(most_rows, num_aux_layers).zero_() if num_aux_layers else None
            self._passed = self._make_rows(most_wanted, 1).zero_(), features_NF
        return self._passed

    def _decode(self, sequences: list[Sequence], k: int) -> Launched:
        """Draft up to k tokens for each sequence, verify them and move on by what is accepted."""
        shape, slots_B = self._prepare(sequences, k)
        return self._conclude(sequences, shape, partial(self._compute, slots_B, shape), parts=("step", "pass"))

    def _prepare(self, sequences: list[Sequence], k: int) -> tuple[_StepShape, Tensor]:
        """Return which kernels a step launches, and the slots of its sequences, padded."""
        size = bucket_of(len(sequences), self.capture_sizes)
        shape = _StepShape(size, k, *Tempering.flags([each.params for each in sequences]), num_ranked(sequences))
        slots_B = self._slots_in(size, sequences)
        self.confirmations.prepare(sequences, k, size)
        return shape, slots_B

    def _conclude(
        self, sequences: list[Sequence], shape: _StepShape, compute: Callable[[], _Computed], *, parts: tuple[str, str]
    ) -> Launched:
        """Verify what is computed and move on by what is accepted.

        Args:
            sequences: whose it is.
            shape: of the step.
            compute: returns it; captured.
            parts: names of the graphs: with the verification, and where the host comes between.
        """
        if not any(involves_host(sequence.params) for sequence in sequences):
            packed, ranks = self._captured(parts[0], shape, lambda: self._finish(compute(), shape))
            return Launched(sequences, packed, bound=shape.k + 1, ranked=ranks)
        computed = self._captured(parts[1], replace(shape, num_ranked=None), lambda: self._keep(compute(), shape))
        # As in vLLM log-probabilities are those under the grammar, and what it forbids does not count as drafted.
        allowed = self._constrain(computed.logits_BSV, sequences, computed.draft)
        penalties = find_penalties(sequences, self._counts, self.model.device)
        logits_BSV = adjust_logits(computed.logits_BSV, sequences, computed.draft.tokens_BK, self._end_ids, penalties)
        padded, num_rows = logits_BSV.shape[:2]
        forced_BS = find_forced(sequences, num_rows, padded=padded, device=self.model.device)
        counted = replace(computed, draft=allowed)
        # Rejection sampling must know all that was drawn; a lossy rule accepts nothing that it does not see.
        judged = computed if isinstance(self._acceptance, Standard) else counted
        accepted = self._verify(judged, logits_BSV, forced_BS)
        if penalties is not None:
            penalties.count(accepted.tokens_BS)
        packed = self._advance(counted, accepted)
        ranks = rank_emitted(computed.logits_BSV, accepted, shape.num_ranked)
        return Launched(sequences, packed, bound=shape.k + 1, ranked=ranks)

    def _captured(self, part: str, shape: _StepShape, work: Callable[[], T]) -> T:
        return work() if shape.size is None else self.graphs.run((part, shape), work)

    def _slots_in(self, size: int | None, sequences: list[Sequence]) -> Tensor:
        """Return the sequences' slots, padded to a size."""
        slots = [sequence.row for sequence in sequences]
        if size is None:
            return upload(slots, self.model.device)
        if size not in self._slots:
            self._slots[size] = _Slots(size, self.model.device)
        return self._slots[size].set(slots + [self.table.padding_slot] * (size - len(slots)))

    def _compute(self, slots_B: Tensor, shape: _StepShape) -> _Computed:
        """Draft, and run the target over each sequence's last token and its draft."""
        view = self._look_up(slots_B, shape)
        draft = self.confirmations.draft(view, shape.k)
        width = draft.tokens_BK.shape[1] + 1
        spans = Spans.on(view.position_B, draft.lengths_B + 1, width, uniform=self._uniform)
        draft = draft if spans.width == width else draft.cut(spans.width - 1)
        tokens_N = spans.pack(torch.cat((view.last_B.unsqueeze(1), draft.tokens_BK), dim=1))
        hidden_NH, features_NF = self._forward(tokens_N, spans, view.page_table_BP)
        return _Computed(
            view=view,
            draft=draft,
            logits_BSV=spans.unpack(self.model.logits(hidden_NH)),
            features_BSF=None if features_NF is None else spans.unpack(features_NF),
        )

    def _look_up(self, slots_B: Tensor, shape: _StepShape) -> View:
        return self.table.look_up(slots_B, k=shape.k, all_greedy=shape.all_greedy, truncates=shape.truncates)

    def _constrain(self, logits_BSV: Tensor, sequences: list[Sequence], draft: Draft) -> Draft:
        return self.grammars.constrain(logits_BSV, [sequence.grammar for sequence in sequences], draft)

    def _finish(self, computed: _Computed, shape: _StepShape) -> tuple[Tensor, Ranked | None]:
        """Verify and advance; return what the host is to know."""
        accepted = self._verify(computed, computed.logits_BSV)
        ranks = rank_emitted(computed.logits_BSV, accepted, shape.num_ranked)
        return self._advance(computed, accepted), ranks

    def _verify(self, computed: _Computed, logits_BSV: Tensor, forced_BS: Tensor | None = None) -> Accepted:
        view = computed.view
        return verify(
            logits_BSV,
            computed.draft,
            tempering=view.tempering,
            seeds_B=view.seeds_B,
            positions_B=view.num_output_B,
            acceptance=self._acceptance,
            forced_BS=forced_BS,
        )

    def _advance(self, computed: _Computed, accepted: Accepted) -> Tensor:
        return self.table.advance(computed.view, computed.draft, accepted, computed.features_BSF)

    def _keep(self, computed: _Computed, shape: _StepShape) -> _Computed:
        """Put the logits of a captured step where they stay after it, without a tensor for every graph."""
        if shape.size is None:
            return computed
        logits_BSV = computed.logits_BSV
        if self._kept is None:  # made by the first such step, which is not captured
            num_rows = self.capture_sizes[-1] * self.table.width
            self._kept = logits_BSV.new_empty(num_rows * logits_BSV.shape[-1])
        kept_BSV = self._kept[: logits_BSV.numel()].view_as(logits_BSV)
        return replace(computed, logits_BSV=kept_BSV.copy_(logits_BSV))

    def _forward(
        self,
        tokens_N: Tensor,
        spans: Spans,
        page_table_BP: Tensor,
        features_NF: Tensor | None = None,
        wanted: tuple[Tensor, Spans] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the target.

        Args:
            tokens_N: of the rows.
            spans: where they are.
            page_table_BP: of their sequences.
            features_NF: where to put the auxiliary hidden states; None: they get a tensor.
            wanted: which rows' hidden states are returned, and where these are; None: all.

        Returns:
            hidden_NH, or of the wanted rows, and the auxiliary hidden states of all rows beside each other.
        """
        plan = plan_attention(spans, page_table_BP, block_size=self.kv.block_size)
        aux_layers = self.confirmations.aux_layers
        if aux_layers and features_NF is None:
            features_NF = self._make_rows(spans.num_rows, len(aux_layers))
        if wanted is not None and max(aux_layers, default=0) < self.model.shape.num_layers:
            plan = plan.wanting(*wanted)
        hidden_NH, _ = self.model(tokens_N, plan.positions_N, self.kv, plan, aux_layers, features_NF)
        if wanted is not None and plan.wanted is None:
            hidden_NH = hidden_NH.index_select(0, wanted[0])
        return hidden_NH, features_NF

    def _make_rows(self, num_rows: int, num_states: int) -> Tensor:
        """Return room for rows of so many hidden states each."""
        width = num_states * self.model.shape.hidden_size
        return torch.empty(num_rows, width, dtype=self.model.dtype, device=self.model.device)

    def _sample_first(
        self, chunks: list[Chunk], last_CH: Tensor, features_NF: Tensor | None, ranks: tuple[PromptRanks, ...]
    ) -> Launched:
        """Sample the first token of each sequence whose prompt is complete, and let it decode."""
        device = self.model.device
        final = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        sequences = [chunks[i].sequence for i in final]
        draft = Draft.empty(len(final), device=device)
        if not final:
            return Launched([], draft.tokens_BK, bound=1, prompts=ranks)
        last_BH = last_CH if len(final) == len(chunks) else last_CH[upload(final, device)]
        features_BF = None
        if features_NF is not None:
            ends = list(accumulate(chunk.length for chunk in chunks))
            features_BF = features_NF[upload([ends[i] - 1 for i in final], device)]
        logits_B1V = self.model.logits(last_BH).unsqueeze(1)
        self._constrain(logits_B1V, sequences, draft)
        enter_counts(sequences, self._counts)
        penalties = find_penalties(sequences, self._counts, device)
        accepted = verify(
            adjust_logits(logits_B1V, sequences, draft.tokens_BK, self._end_ids, penalties),
            draft,
            tempering=Tempering.of([sequence.params for sequence in sequences], device),
            seeds_B=upload([sequence.seed for sequence in sequences], device),
            positions_B=upload([sequence.num_output for sequence in sequences], device),
            acceptance=self._acceptance,
            forced_BS=find_forced(sequences, 1, padded=len(sequences), device=device),
        )
        if penalties is not None:
            penalties.count(accepted.tokens_BS)
        self.table.enter(sequences, accepted.tokens_BS[:, 0], features_BF)
        ranked = rank_emitted(logits_B1V, accepted, num_ranked(sequences))
        return Launched(sequences, pack(draft, accepted), bound=1, ranked=ranked, prompts=ranks)


def _ranks_prompts(chunks: list[Chunk]) -> bool:
    """Return whether hidden states of all rows of these prompts are needed, for log-probabilities."""
    return any(chunk.sequence.params.prompt_logprobs is not None for chunk in chunks)


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
