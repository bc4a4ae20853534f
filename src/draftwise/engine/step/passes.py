"""Builds the passes of the target: their rows, inputs and outputs.

Shape letters: B sequences (padded to a bucket on a GPU), S = K+1 target rows a sequence, K draft tokens, N rows of a
pass, R rows of logits or rows that are wanted, C prompts, V vocabulary, H hidden size, F features of a token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.transfer import upload
from draftwise.engine.models import CausalLM
from draftwise.engine.models.linear import find_most_alike
from draftwise.engine.sampling.acceptance_rules import Rule, SyntheticRates
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.logprobs import TokenRanks, rank_tokens
from draftwise.engine.sampling.verify import accept_likeliest, verify
from draftwise.engine.step.confirm import Confirmations
from draftwise.engine.step.launched import PromptRanks
from draftwise.engine.step.prompt_passes import MixedDraft
from draftwise.engine.step.scheduler import Chunk, Sequence
from draftwise.engine.step.table import SequenceTable, View

_RANKED_ROWS = 256
"""Number of prompt tokens whose log-probabilities are computed together."""


def bucket_of(num_seqs: int, sizes: abc.Sequence[int]) -> int | None:
    """Return the smallest of the ascending `sizes` for `num_seqs` sequences; None: no padding."""
    place = bisect_left(sizes, num_seqs)
    return sizes[place] if place < len(sizes) else None


def ranks_prompts(chunks: list[Chunk]) -> bool:
    """Return whether log-probabilities need the hidden states of all rows of these prompts."""
    return any(chunk.sequence.params.prompt_logprobs is not None for chunk in chunks)


@dataclass(frozen=True, slots=True)
class StepShape:
    """Properties that determine a decoding step's kernels."""

    size: int | None
    """Number of sequences including padding; None: no padding and no capture."""
    k: int
    all_greedy: bool
    truncates: bool
    num_ranked: int | None
    """Number of tokens to rank at each position; None: no ranking."""
    picks: bool = False
    """Whether a step needs no logits but only the likeliest tokens."""

    @classmethod
    def of(cls, sequences: list[Sequence], size: int | None, k: int) -> StepShape:
        """Return the shape of a step of these sequences."""
        traits = [sequence.traits for sequence in sequences]
        all_greedy = all(each.greedy for each in traits)
        num_ranked = max((each.num_ranked for each in traits if each.num_ranked is not None), default=None)
        return cls(
            size,
            k,
            all_greedy=all_greedy,
            truncates=any(each.truncates for each in traits),
            num_ranked=num_ranked,
            picks=all_greedy and num_ranked is None and not any(each.needs_host for each in traits),
        )


@dataclass(frozen=True, slots=True)
class PassOutput:
    """The target's output for a step's rows."""

    view: View
    draft: Draft
    logits_BSV: Tensor
    """Empty where the pass picks tokens itself."""
    features_BSF: Tensor | None
    likeliest_BS: Tensor | None = None


class Passes:
    """Runs target and proposer over the table's sequences. No method waits for the device, except for values that a
    proposer on the host needs. No method keeps a tensor, so all but `prompts`, which gets host inputs, can be captured.

    Args:
        uniform: whether steps have uniform rows, whose lengths only the device knows (see `Spans`).

    Attributes:
        most_shared_rows: maximum rows of a pass shared by prompts and decoding sequences: on a CPU, as many as do not
            change a row's bits; on a GPU 0, because `PromptBatch` has both.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: PagedKV,
        table: SequenceTable,
        confirmations: Confirmations,
        *,
        rule: Rule,
        uniform: bool,
    ) -> None:
        self.model, self.kv, self.table, self.confirmations = model, kv, table, confirmations
        self._rule, self._uniform = rule, uniform
        self._no_logits = torch.empty(0)
        self._picks = model.picks_tokens and not kv.is_narrow and not isinstance(rule, SyntheticRates)
        self.most_shared_rows = 0 if uniform or model.device.type != "cpu" else find_most_alike(model.dtype)

    def decode(self, slots_B: Tensor, shape: StepShape) -> PassOutput:
        """Draft, and run the target over each sequence's last token and its draft."""
        view, draft, spans, tokens_N = self._draft(slots_B, shape)
        picked_N = torch.empty(spans.num_rows, dtype=torch.long) if shape.picks and self._picks else None
        hidden_NH, features_NF = self.forward(tokens_N, spans, view.page_table_BP, likeliest_R=picked_N)
        return self._read(view, draft, spans, hidden_NH, features_NF, picked_N)

    def decode_with_prompts(
        self, chunks: list[Chunk], slots_B: Tensor, shape: StepShape
    ) -> tuple[PassOutput, tuple[Tensor, Tensor | None, tuple[PromptRanks, ...]]]:
        """Do the work of `decode` and `prompts` in one pass, which reads the weights once. Return both results.

        Requires that the host knows all lengths.
        """
        view, draft, spans, decoded_N = self._draft(slots_B, shape)
        prompts, tokens_N, pages_BP = self._lay_out(chunks)
        tokens_N, pages_BP = torch.cat((decoded_N, tokens_N)), torch.cat((view.page_table_BP, pages_BP))
        count = spans.num_rows
        last_C, wanted = prompts.last_row_B + count, None
        if not ranks_prompts(chunks):
            rows_R = torch.cat((torch.arange(count, device=last_C.device), last_C))
            wanted, last_C = (rows_R, spans.and_then(prompts.ends())), torch.arange(count, len(rows_R))
        hidden_RH, features_NF = self.forward(tokens_N, spans.and_then(prompts), pages_BP, wanted=wanted)
        ranks = tuple(self._rank(chunks, hidden_RH[count:]))
        features = (None, None) if features_NF is None else (features_NF[:count], features_NF[count:])
        output = self._read(view, draft, spans, hidden_RH[:count], features[0])
        return output, (hidden_RH[last_C], features[1], ranks)

    def _draft(self, slots_B: Tensor, shape: StepShape) -> tuple[View, Draft, Spans, Tensor]:
        """Draft; return the rows that verify it, and their tokens."""
        view = self._look_up(slots_B, shape)
        draft = self.confirmations.draft(view, shape.k)
        width = draft.tokens_BK.shape[1] + 1
        spans = Spans.on(view.position_B, draft.lengths_B + 1, width, uniform=self._uniform)
        draft = draft if spans.width == width else draft.cut(spans.width - 1)
        if spans.width == 1:
            return view, draft, spans, view.last_B
        return view, draft, spans, spans.pack(torch.cat((view.last_B.unsqueeze(1), draft.tokens_BK), dim=1))

    def _read(
        self,
        view: View,
        draft: Draft,
        spans: Spans,
        hidden_NH: Tensor,
        features_NF: Tensor | None,
        likeliest_N: Tensor | None = None,
    ) -> PassOutput:
        """Return the output of a pass, of which these are the rows that decode."""
        return PassOutput(
            view=view,
            draft=draft,
            logits_BSV=self._no_logits if likeliest_N is not None else spans.unpack(self.model.logits(hidden_NH)),
            features_BSF=None if features_NF is None else spans.unpack(features_NF),
            likeliest_BS=None if likeliest_N is None else spans.unpack(likeliest_N),
        )

    def finish(self, output: PassOutput, shape: StepShape) -> tuple[Tensor, TokenRanks | None]:
        """Verify the draft and advance the table by the accepted tokens. Return the numbers that the host reads."""
        view, logits_BSV = output.view, output.logits_BSV
        if output.likeliest_BS is not None:
            accepted = accept_likeliest(output.likeliest_BS, output.draft)
            return self.table.advance(view, output.draft, accepted, output.features_BSF), None
        accepted = verify(
            logits_BSV,
            output.draft,
            tempering=view.tempering,
            seeds_B=view.seeds_B,
            positions_B=view.num_output_B,
            acceptance=self._rule,
        )
        ranked = None
        if shape.num_ranked is not None:
            ranked = rank_tokens(logits_BSV.flatten(0, 1), accepted.tokens_BS.flatten(), shape.num_ranked)
        return self.table.advance(view, output.draft, accepted, output.features_BSF), ranked

    def draft_for_mixed(self, shape: StepShape, mixed: MixedDraft) -> None:
        """Draft for each sequence of a mixed pass, and store the draft as the pass's input."""
        view = self._look_up(mixed.slots_B, shape)
        mixed.set(view, self.confirmations.draft(view, shape.k))

    def read_mixed(
        self, shape: StepShape, mixed: MixedDraft, hidden_RH: Tensor, features_NF: Tensor | None
    ) -> PassOutput:
        """Return the output of a mixed pass for its decoding sequences, which have the first rows."""
        num_seqs, width = len(mixed.slots_B), shape.k + 1
        rows_BSF = None if features_NF is None else features_NF[: num_seqs * width].unflatten(0, (num_seqs, width))
        return PassOutput(
            view=self._look_up(mixed.slots_B, shape),
            draft=mixed.draft,
            logits_BSV=self.model.logits(hidden_RH[: num_seqs * width]).unflatten(0, (num_seqs, width)),
            features_BSF=rows_BSF,
        )

    def prompts(self, chunks: list[Chunk]) -> tuple[Tensor, Tensor | None, tuple[PromptRanks, ...]]:
        """Compute prompts without padding.

        Returns:
            last_CH, hidden state of each prompt's last row; features_NF, auxiliary hidden states of all rows; and ranks
            of prompt tokens, if requested.
        """
        spans, tokens_N, pages_CP = self._lay_out(chunks)
        if not ranks_prompts(chunks):
            return *self.forward(tokens_N, spans, pages_CP, wanted=(spans.last_row_B, spans.ends())), ()
        hidden_NH, features_NF = self.forward(tokens_N, spans, pages_CP)
        return hidden_NH[spans.last_row_B], features_NF, tuple(self._rank(chunks, hidden_NH))

    def _lay_out(self, chunks: list[Chunk]) -> tuple[Spans, Tensor, Tensor]:
        """Return where the rows of prompts are, their tokens, and the pages of their sequences."""
        spans = Spans.of([c.start for c in chunks], [c.length for c in chunks], self.model.device)
        tokens = [token for c in chunks for token in c.sequence.tokens[c.start : c.end]]
        slots_C = upload([c.sequence.row for c in chunks], self.model.device)
        return spans, upload(tokens, self.model.device), self.table.pages(slots_C)

    def forward(
        self,
        tokens_N: Tensor,
        spans: Spans,
        page_table_BP: Tensor,
        features_NF: Tensor | None = None,
        wanted: tuple[Tensor, Spans] | None = None,
        likeliest_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the target.

        Args:
            features_NF: output buffer for auxiliary hidden states. None: a new tensor.
            wanted: rows whose hidden states to return, and their places. None: all.
            likeliest_R: see `CausalLM.forward`.

        Returns:
            hidden_NH, only of the wanted rows if given, and the concatenated auxiliary hidden states of all rows.
        """
        plan = plan_attention(spans, page_table_BP, block_size=self.kv.block_size)
        aux_layers = self.confirmations.aux_layers
        if aux_layers and features_NF is None:
            width = len(aux_layers) * self.model.shape.hidden_size
            features_NF = torch.empty(spans.num_rows, width, dtype=self.model.dtype, device=self.model.device)
        if wanted is not None and max(aux_layers, default=0) < self.model.shape.num_layers:
            plan = plan.wanting(*wanted)
        hidden_NH, _ = self.model(tokens_N, plan.positions_N, self.kv, plan, aux_layers, features_NF, likeliest_R)
        if wanted is not None and plan.wanted is None:
            hidden_NH = hidden_NH.index_select(0, wanted[0])
        return hidden_NH, features_NF

    def _look_up(self, slots_B: Tensor, shape: StepShape) -> View:
        return self.table.look_up(slots_B, k=shape.k, all_greedy=shape.all_greedy, truncates=shape.truncates)

    def _rank(self, chunks: list[Chunk], hidden_NH: Tensor) -> Iterator[PromptRanks]:
        """Rank the prompt tokens that follow the positions computed, where a request wants that.

        In pieces, because the log-probabilities of a whole chunk would take gigabytes.
        """
        row, device = 0, self.model.device
        for chunk in chunks:
            sequence = chunk.sequence
            targets = sequence.request.prompt_token_ids[chunk.start + 1 : chunk.end + 1]
            k = sequence.params.prompt_logprobs
            if k is not None and not sequence.num_output:
                for first in range(0, len(targets), _RANKED_ROWS):
                    piece = targets[first : first + _RANKED_ROWS]
                    logits_RV = self.model.logits(hidden_NH[row + first : row + first + len(piece)])
                    yield PromptRanks(sequence=sequence, ranked=rank_tokens(logits_RV, upload(piece, device), k))
            row += chunk.length
