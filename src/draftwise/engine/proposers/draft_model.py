"""A smaller model of the same vocabulary drafts (Leviathan et al. 2023, arXiv 2211.17192).

Shape letters: B sequences, K draft tokens, N tokens of a forward pass, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwise.engine.attention import PagedKV, plan_attention
from draftwise.engine.models import CausalLM
from draftwise.engine.pages import PagePool
from draftwise.engine.proposers.base import Confirmed, Draft, Proposer
from draftwise.engine.random import Lane, gumbel

__all__ = ["DraftModelProposer"]


@dataclass(slots=True)
class _History:
    """Confirmed tokens of one sequence, and how many of them have keys and values."""

    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Span:
    """`count` tokens of a sequence to compute: its own from `start` on, or one drafted token."""

    history: _History
    start: int
    tokens: list[int]


class DraftModelProposer(Proposer):
    """Drafts token by token with another model, all sequences together.

    Keys and values are kept for confirmed tokens only: those of a draft lie behind them and are
    overwritten by what is confirmed next. A sequence that finds no free page gets no draft.

    Args:
        model: the drafter; its token ids must mean what the target's mean.
        max_num_seqs: sequences at a time.
        max_model_len: the target's longest context; the drafter's own limit shortens drafts before it.
        block_size: tokens a page.
        probabilistic: draw drafts from the model's distribution at the request's temperature and return it
            (vLLM's draft_sample_method `probabilistic`), instead of taking the most likely token.
        max_num_batched_tokens: tokens of one forward pass at most.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int = 16,
        probabilistic: bool = False,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        self._model = model
        self._limit = min(max_model_len, model.shape.max_position_embeddings)
        self._probabilistic = probabilistic
        self._max_num_batched_tokens = max_num_batched_tokens
        num_pages = max_num_seqs * -(-self._limit // block_size)
        self._pool = PagePool(num_pages, enable_prefix_caching=False)
        self._kv = PagedKV(
            model.shape, num_pages=num_pages, block_size=block_size, dtype=model.dtype, device=model.device
        )
        self._histories: dict[int, _History] = {}

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new`; draft up to k tokens each, fewer near the end of the context."""
        histories = [self._histories.setdefault(slot, _History()) for slot in new.slots]
        for history, tokens in zip(histories, new.to_lists(), strict=True):
            history.tokens += tokens
        lengths = [self._affordable(history, k) for history in histories]
        drafting = [b for b, length in enumerate(lengths) if length > 0]
        if not drafting:
            return Draft.empty(len(histories), k, device=self._model.device)
        rows, probs_BKV = self._chain(new, histories, lengths, drafting, k)
        draft = Draft.from_lists(rows, k, device=self._model.device)
        return Draft(tokens_BK=draft.tokens_BK, lengths_B=draft.lengths_B, probs_BKV=probs_BKV)

    def release(self, slot: int) -> None:
        """Forget the sequence in `slot` and free its pages."""
        history = self._histories.pop(slot, None)
        if history is not None:
            self._pool.free(history.pages)

    def _affordable(self, history: _History, k: int) -> int:
        """Hold pages for the sequence and a draft; return how long the draft may be."""
        size = self._kv.block_size
        length = min(k, self._limit - len(history.tokens))
        if length <= 0:
            return 0
        missing = -(-(len(history.tokens) + length - 1) // size) - len(history.pages)
        pages = self._pool.allocate(max(missing, 0))
        if pages is None:
            return 0
        history.pages += pages
        return length

    def _chain(
        self, new: Confirmed, histories: list[_History], lengths: list[int], drafting: list[int], k: int
    ) -> tuple[list[list[int]], Tensor | None]:
        """Draft for the sequences `drafting`; return rows of all sequences, and probabilities if asked for."""
        rows: list[list[int]] = [[] for _ in histories]
        probs_BKV = None
        if self._probabilistic:
            probs_BKV = torch.zeros(len(histories), k, self._model.shape.vocab_size, device=self._model.device)
        logits_BV = self._catch_up([histories[b] for b in drafting])
        for step in range(k):
            tokens, probs_BV = self._choose(logits_BV, new, histories, drafting, step)
            for i, b in enumerate(drafting):
                rows[b].append(tokens[i])
                if probs_BKV is not None and probs_BV is not None:
                    probs_BKV[b, step] = probs_BV[i]
            drafting = [b for b in drafting if lengths[b] > step + 1]
            if not drafting:
                break
            spans = [_Span(histories[b], len(histories[b].tokens) + step, rows[b][-1:]) for b in drafting]
            logits_BV = self._compute(spans)
        return rows, probs_BKV

    def _choose(
        self, logits_BV: Tensor, new: Confirmed, histories: list[_History], drafting: list[int], step: int
    ) -> tuple[list[int], Tensor | None]:
        """Return the next draft token of each sequence, and what it was drawn from when drafting by chance."""
        if not self._probabilistic:
            return logits_BV.argmax(-1).tolist(), None
        device = logits_BV.device
        temperature_B1 = logits_BV.new_tensor([[new.temperature[b]] for b in drafting])
        tempered_BV = logits_BV.float() / temperature_B1.clamp(min=1e-2)
        seeds_B = torch.tensor([new.seeds[b] for b in drafting], device=device)
        positions_B = torch.tensor(
            [len(histories[b].tokens) - new.num_prompt[b] + step for b in drafting], device=device
        )
        noise_BV = gumbel(seeds_B, positions_B, logits_BV.shape[-1], Lane.DRAFT)
        greedy_B1 = temperature_B1 == 0
        tokens_B = torch.where(greedy_B1, tempered_BV, tempered_BV + noise_BV).argmax(-1)
        certain_BV = torch.nn.functional.one_hot(tokens_B, logits_BV.shape[-1]).float()
        return tokens_B.tolist(), torch.where(greedy_B1, certain_BV, tempered_BV.softmax(-1))

    def _catch_up(self, histories: Items[_History]) -> Tensor:
        """Compute what was confirmed and return the logits [B, V] after each sequence's last token."""
        last: dict[int, Tensor] = {}
        while len(last) < len(histories):
            budget = self._max_num_batched_tokens
            batch: list[int] = []
            spans: list[_Span] = []
            for b, history in enumerate(histories):
                waiting = history.tokens[history.num_computed : history.num_computed + budget]
                if waiting and b not in last:
                    batch.append(b)
                    spans.append(_Span(history, history.num_computed, waiting))
                    budget -= len(waiting)
            logits_BV = self._compute(spans)
            for b, span, logits_V in zip(batch, spans, logits_BV, strict=True):
                span.history.num_computed += len(span.tokens)
                if span.history.num_computed == len(span.history.tokens):
                    last[b] = logits_V
        return torch.stack([last[b] for b in range(len(histories))])

    def _compute(self, spans: list[_Span]) -> Tensor:
        """Run the model over spans of tokens and return the logits [B, V] after each span's last token."""
        device = self._model.device
        ends = [span.start + len(span.tokens) for span in spans]
        plan = plan_attention(
            query_lens=[len(span.tokens) for span in spans],
            context_lens=ends,
            page_tables=[span.history.pages for span in spans],
            block_size=self._kv.block_size,
            device=device,
        )
        tokens_N = torch.tensor([token for span in spans for token in span.tokens], device=device)
        positions = [range(span.start, end) for span, end in zip(spans, ends, strict=True)]
        positions_N = torch.tensor([position for span in positions for position in span], device=device)
        hidden_NH, _ = self._model(tokens_N, positions_N, self._kv, plan)
        last_B = torch.tensor([len(span.tokens) for span in spans], device=device).cumsum(0) - 1
        return self._model.logits(hidden_NH[last_B])
