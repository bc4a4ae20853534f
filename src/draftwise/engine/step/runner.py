"""Launches the passes of a step, and keeps their CUDA graphs with their input and output tensors.

Shape letters: B sequences (padded to a bucket on a GPU), S = K+1 target rows a sequence, K draft tokens, N rows of a
pass, R rows that are wanted, C prompts, V vocabulary, H hidden size, F features of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload
from draftwise.engine.step.capture import Graphs
from draftwise.engine.step.host_sampler import HostSampler
from draftwise.engine.step.launched import LaunchedStep, PromptRanks, pack
from draftwise.engine.step.passes import Passes, PassOutput, StepShape, bucket_of, ranks_prompts
from draftwise.engine.step.prompt_passes import (
    MOST_DECODE_ROWS,
    MixedDecode,
    MixedDraft,
    PromptBatch,
    PromptSize,
    choose_size,
)
from draftwise.engine.step.scheduler import Chunk, Sequence, StepSchedule
from draftwise.engine.step.threads import StepThreads

T = TypeVar("T")


class StepRunner:
    """Runs target and proposer over scheduled work. Nothing waits for the device, except for values that a proposer on
    the host or a grammar needs, and while a graph is captured.

    Args:
        capture_sizes: batch sizes to which steps are padded, and for which a GPU captures them; empty: neither.
        prompt_sizes: the same for passes over prompts, ascending; empty: no padding, and no shared passes.
        max_num_rows: maximum rows of a shared pass.
        threads: controls the number of threads per step. None: all of torch's threads.

    Attributes:
        most_shared_rows: see `Passes`.
    """

    def __init__(
        self,
        passes: Passes,
        sampler: HostSampler,
        *,
        capture_sizes: tuple[int, ...] = (),
        prompt_sizes: tuple[PromptSize, ...] = (),
        max_num_rows: int = 0,
        threads: StepThreads | None = None,
    ) -> None:
        self.model, self.kv, self.table = passes.model, passes.kv, passes.table
        self.confirmations, self.grammars = passes.confirmations, sampler.grammars
        self._passes, self._sampler = passes, sampler
        self.capture_sizes, self.prompt_sizes, self.max_num_rows = capture_sizes, prompt_sizes, max_num_rows
        self.threads, self.most_shared_rows = threads, passes.most_shared_rows
        self.graphs = Graphs(enabled=bool(capture_sizes) and self.model.device.type == "cuda")
        self._slots: dict[int, _Slots] = {}
        self._mixed: dict[tuple[int, int], MixedDraft] = {}
        self._batches: dict[PromptSize, PromptBatch] = {}
        self._logits: Tensor | None = None
        """Logits of captured steps that the host has a part in: one place for all graphs."""
        self._outputs: tuple[Tensor, Tensor | None] | None = None
        """Output buffers of captured prompt passes, shared by all sizes."""

    @torch.inference_mode()
    def run(self, schedule: StepSchedule) -> tuple[LaunchedStep, ...]:
        """Launch a step: update the table, then run prompts, then decoding."""
        if self.threads is None:
            return self._launch(schedule)
        rows, taken = sum(chunk.length for chunk in schedule.chunks), self.grammars.num_busy
        with self.threads.computing(prompt_rows=rows, taken=taken):
            return self._launch(schedule)

    @torch.inference_mode()
    def run_around_pass(self, schedule: StepSchedule) -> None:
        """Launch the work before and after a mixed pass, without the pass itself."""
        self._enter(schedule)
        shape, mixed = self._draft_for_mixed_pass(schedule.decodes, schedule.k)
        self._finish_mixed_pass(schedule.decodes, shape, mixed)

    def _launch(self, schedule: StepSchedule) -> tuple[LaunchedStep, ...]:
        self._enter(schedule)
        chunks, decodes, k = schedule.chunks, schedule.decodes, schedule.k
        if chunks and decodes and (size := self._size_of(chunks, decodes, k)) is not None:
            return self._run_mixed(chunks, decodes, k, size)
        if chunks and decodes and sum(each.length for each in chunks) + len(decodes) * (k + 1) <= self.most_shared_rows:
            shape, slots_B = self._prepare(decodes, k)
            output, of_prompts = self._passes.decode_with_prompts(chunks, slots_B, shape)
            return self._end_prompts(chunks, *of_prompts), self._verify(decodes, shape, lambda: output, parts=("", ""))
        prompts = (self._prefill(chunks),) if chunks else ()
        return (*prompts, self._decode(decodes, k)) if decodes else prompts

    def _enter(self, schedule: StepSchedule) -> None:
        """Enter what the scheduler decided into the table."""
        self.confirmations.notify()
        if schedule.released_slots:
            self.table.release(schedule.released_slots)
            self.confirmations.release(schedule.released_slots)
        if schedule.page_changes:
            self.table.give_pages(schedule.page_changes)

    def _decode(self, sequences: list[Sequence], k: int) -> LaunchedStep:
        """Draft up to k tokens for each sequence, verify them and move on by what is accepted."""
        shape, slots_B = self._prepare(sequences, k)
        return self._verify(sequences, shape, partial(self._passes.decode, slots_B, shape), parts=("step", "pass"))

    def _prepare(self, sequences: list[Sequence], k: int) -> tuple[StepShape, Tensor]:
        """Return which kernels a step launches, and the slots of its sequences, padded."""
        shape = StepShape.of(sequences, bucket_of(len(sequences), self.capture_sizes), k)
        slots_B = self._slots_in(shape.size, sequences)
        self.confirmations.prepare(sequences, k, shape.size)
        return shape, slots_B

    def _slots_in(self, size: int | None, sequences: list[Sequence]) -> Tensor:
        """Return the sequences' slots, padded to a size."""
        slots = [sequence.row for sequence in sequences]
        if size is None:
            return upload(slots, self.model.device)
        if size not in self._slots:
            self._slots[size] = _Slots(size, self.model.device)
        return self._slots[size].set(slots + [self.table.padding_slot] * (size - len(slots)))

    def _verify(
        self, sequences: list[Sequence], shape: StepShape, compute: Callable[[], PassOutput], *, parts: tuple[str, str]
    ) -> LaunchedStep:
        """Verify what a pass computes and move on by what is accepted.

        Args:
            compute: returns the pass's output; captured.
            parts: names of the graphs: with the verification, and where the host comes between.
        """
        passes, bound = self._passes, shape.k + 1
        if not any(sequence.traits.needs_host for sequence in sequences):
            packed, ranked = self._captured(parts[0], shape, lambda: passes.finish(compute(), shape))
            return LaunchedStep(sequences, packed, bound=bound, ranked=ranked)
        output = self._captured(parts[1], replace(shape, num_ranked=None), lambda: self._keep(compute(), shape))
        view = output.view
        draft, accepted, ranked = self._sampler.verify(
            sequences,
            output.logits_BSV,
            output.draft,
            tempering=view.tempering,
            seeds_B=view.seeds_B,
            positions_B=view.num_output_B,
        )
        packed = self.table.advance(view, draft, accepted, output.features_BSF)
        return LaunchedStep(sequences, packed, bound=bound, ranked=ranked)

    def _captured(self, part: str, shape: StepShape, work: Callable[[], T]) -> T:
        return work() if shape.size is None else self.graphs.run((part, shape), work)

    def _keep(self, output: PassOutput, shape: StepShape) -> PassOutput:
        """Put the logits of a captured step where they stay after it, without a tensor for every graph."""
        if shape.size is None:
            return output
        logits_BSV = output.logits_BSV
        if self._logits is None:  # made by the first such step, which is not captured
            num_rows = self.capture_sizes[-1] * self.table.width
            self._logits = logits_BSV.new_empty(num_rows * logits_BSV.shape[-1])
        kept_BSV = self._logits[: logits_BSV.numel()].view_as(logits_BSV)
        return replace(output, logits_BSV=kept_BSV.copy_(logits_BSV))

    def _prefill(self, chunks: list[Chunk]) -> LaunchedStep:
        """Compute prompts; sequences whose prompt is complete sample a token and can decode from then on."""
        if (size := self._size_of(chunks, [], 0)) is None:
            return self._end_prompts(chunks, *self._passes.prompts(chunks))
        batch = self._batch_of(size)
        batch.set(chunks)
        last_CH, features_NF = self.graphs.run(("prompts", size), partial(self._captured_pass, batch))
        return self._end_prompts(chunks, last_CH[: len(chunks)], features_NF)

    def _size_of(self, chunks: list[Chunk], decodes: list[Sequence], k: int) -> PromptSize | None:
        """Return what `choose_size` does; None also for prompts of which all rows are read."""
        if ranks_prompts(chunks):
            return None
        mixed = None
        if decodes:
            padded = bucket_of(len(decodes), self.capture_sizes)
            if padded is None:
                return None
            longest = max(len(sequence.tokens) for sequence in decodes)
            mixed = MixedDecode(count=len(decodes), padded=padded, width=k + 1, longest=longest)
        reach = self.table.reach
        return choose_size(chunks, self.prompt_sizes, reach=reach, mixed=mixed, max_num_rows=self.max_num_rows)

    def _end_prompts(
        self, chunks: list[Chunk], last_CH: Tensor, features_NF: Tensor | None, ranks: tuple[PromptRanks, ...] = ()
    ) -> LaunchedStep:
        """Sample after prompts that are complete, let these decode, and notify the proposer of all prompts.

        Args:
            last_CH: the hidden state of the last row of each.
            features_NF: the auxiliary hidden states of all rows, or of more.
            ranks: of prompt tokens.
        """
        launched = self._sample_first(chunks, last_CH, features_NF, ranks)
        self.confirmations.note_prompts(chunks, features_NF)
        return launched

    def _sample_first(
        self, chunks: list[Chunk], last_CH: Tensor, features_NF: Tensor | None, ranks: tuple[PromptRanks, ...]
    ) -> LaunchedStep:
        device = self.model.device
        final = [i for i, chunk in enumerate(chunks) if chunk.is_last]
        sequences = [chunks[i].sequence for i in final]
        if not final:
            return LaunchedStep([], torch.zeros(0, 0, dtype=torch.long, device=device), bound=1, prompts=ranks)
        last_BH = last_CH if len(final) == len(chunks) else last_CH[upload(final, device)]
        features_BF = None
        if features_NF is not None:
            ends = list(accumulate(chunk.length for chunk in chunks))
            features_BF = features_NF[upload([ends[i] - 1 for i in final], device)]
        draft, accepted, ranked = self._sampler.sample_first(sequences, self.model.logits(last_BH).unsqueeze(1))
        self.table.enter(sequences, accepted.tokens_BS[:, 0], features_BF)
        return LaunchedStep(sequences, pack(draft, accepted), bound=1, ranked=ranked, prompts=ranks)

    def _batch_of(self, size: PromptSize) -> PromptBatch:
        if size not in self._batches:
            self._batches[size] = self._make_batch(size)
        return self._batches[size]

    def _make_batch(self, size: PromptSize, longest: int | None = None) -> PromptBatch:
        return PromptBatch(size, padding_slot=self.table.padding_slot, device=self.model.device, longest=longest)

    def _captured_pass(self, batch: PromptBatch) -> tuple[Tensor, Tensor | None]:
        """Compute what is laid out for a graph; return what `Passes.forward` does, where it stays after the graph,
        without tensors for each of them."""
        kept_RH, features_NF = self._output_buffers()
        features_NF = None if features_NF is None else features_NF[: batch.size.num_rows]
        pages_BP = self.table.pages(batch.slots_B)
        hidden_RH, features_NF = self._passes.forward(batch.tokens_N, batch.spans, pages_BP, features_NF, batch.wanted)
        return kept_RH[: len(hidden_RH)].copy_(hidden_RH), features_NF

    def _output_buffers(self) -> tuple[Tensor, Tensor | None]:
        """Return where passes over prompts leave hidden states that are read, and auxiliary ones: made by the first,
        which is not captured."""
        if self._outputs is None:
            num_aux_layers, model = len(self.confirmations.aux_layers), self.model
            most_wanted = max(MOST_DECODE_ROWS, *(size.num_wanted for size in self.prompt_sizes))
            most_rows = max(most_wanted, *(size.num_rows for size in self.prompt_sizes))
            hidden_RH = torch.zeros(most_wanted, model.shape.hidden_size, dtype=model.dtype, device=model.device)
            # A step that is padded further than a pass finds rows here that it has not written, but finite ones.
            num_features = num_aux_layers * model.shape.hidden_size
            features_NF = hidden_RH.new_zeros(most_rows, num_features) if num_aux_layers else None
            self._outputs = hidden_RH, features_NF
        return self._outputs

    def _run_mixed(
        self, chunks: list[Chunk], sequences: list[Sequence], k: int, size: PromptSize
    ) -> tuple[LaunchedStep, LaunchedStep]:
        """Compute prompts, and draft and verify for decoding sequences, in one pass of the target: it reads the
        weights once, and more rows make better use of a GPU. What comes before and after is captured by itself, and the
        pass too if it has few rows."""
        shape, mixed = self._draft_for_mixed_pass(sequences, k)
        is_captured = size.num_rows <= self.prompt_sizes[-1].num_rows
        batch = self._batch_of(size) if is_captured else self._make_batch(size, max(each.length for each in chunks))
        batch.set(chunks, [sequence.row for sequence in sequences], mixed)
        if is_captured:
            hidden_RH, features_NF = self.graphs.run(("prompts", size), partial(self._captured_pass, batch))
        else:
            hidden_RH, features_NF = self._uncaptured_pass(batch)
        last_CH = hidden_RH[size.num_decodes * size.width :][: len(chunks)]
        features_NF = None if features_NF is None else features_NF[len(sequences) * size.width :]
        prompts = self._end_prompts(chunks, last_CH, features_NF)
        return prompts, self._finish_mixed_pass(sequences, shape, mixed)

    def _draft_for_mixed_pass(self, sequences: list[Sequence], k: int) -> tuple[StepShape, MixedDraft]:
        """Draft for a mixed pass; return which kernels end the step, and where the drafts of its size are kept."""
        shape, slots_B = self._prepare(sequences, k)
        assert shape.size is not None
        if (shape.size, k) not in self._mixed:
            self._mixed[shape.size, k] = MixedDraft(slots_B, k)
        mixed = self._mixed[shape.size, k]
        # Drafts are not drawn here, so that they do not depend on how tokens are sampled.
        drafted = StepShape(shape.size, k, all_greedy=True, truncates=False, num_ranked=None)
        self._captured("draft", drafted, partial(self._passes.draft_for_mixed, drafted, mixed))
        return shape, mixed

    def _uncaptured_pass(self, batch: PromptBatch) -> tuple[Tensor, Tensor | None]:
        """Compute more rows than graphs have; return what `Passes.forward` does, and keep the rows of decoding
        sequences."""
        num_rows = batch.size.num_decodes * batch.size.width
        hidden_RH, features_NF = self._passes.forward(
            batch.tokens_N, batch.spans, self.table.pages(batch.slots_B), wanted=batch.wanted
        )
        for buffer, rows in zip(self._output_buffers(), (hidden_RH, features_NF), strict=True):
            if buffer is not None and rows is not None:
                num_kept = min(num_rows, len(buffer), len(rows))
                buffer[:num_kept].copy_(rows[:num_kept])
        return hidden_RH, features_NF

    def _finish_mixed_pass(self, sequences: list[Sequence], shape: StepShape, mixed: MixedDraft) -> LaunchedStep:
        """Verify the output of a mixed pass for its decoding sequences."""

        def read() -> PassOutput:
            return self._passes.read_mixed(shape, mixed, *self._output_buffers())

        return self._verify(sequences, shape, read, parts=("end", "logits"))


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
