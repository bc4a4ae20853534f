"""Drafts with a network that keeps keys and values in pages; token by token for draft models, EAGLE, EAGLE-3 and MTP.

Shape letters: B sequences, N rows of a pass, W rows that a sequence can have at most, M tokens of the longest draft,
H hidden size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan, Spans, plan_attention
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM
from draftwise.engine.models.causal_lm import rows_of
from draftwise.engine.models.draft_head import ChainDrafter, DraftNetwork
from draftwise.engine.proposers.proposer import Confirmed, DraftBuilder, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.engine.kernels.cpu_layers import QuantizedChain


class PagedProposer(Proposer):
    """Base class of proposers with pages.

    Args:
        probabilistic: draw draft tokens at the request's temperature and return their distributions (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        max_model_len: the target's longest context.
    """

    kv: PagedKV

    def __init__(self, network: DraftNetwork, *, probabilistic: bool, max_model_len: int) -> None:
        self.aux_layers = network.aux_layers
        self.num_layers = network.kv_shape.num_layers
        self.kv_bytes_per_token = network.kv_shape.kv_bytes_per_token(network.dtype.itemsize)
        self._network, self._probabilistic = network, probabilistic
        self._reach = min(max_model_len, network.kv_shape.max_position_embeddings)

    def allocate(self, *, num_pages: int, block_size: int) -> None:
        """Allocate the network's cache."""
        network = self._network
        self.kv = PagedKV(
            network.kv_shape, num_pages=num_pages, block_size=block_size, dtype=network.dtype, device=network.device
        )

    def release(self, slot: int) -> None:
        """Do nothing: all state is in the sequence's pages."""

    def _plan(self, new: Confirmed, spans: Spans, *, causal: bool = True) -> AttentionPlan:
        """Return the plan for rows of the sequences of `new`; those out of the network's reach are computed in vain."""
        return plan_attention(spans, new.page_table_BP, block_size=self.kv.block_size, limit=self._reach, causal=causal)

    def _begin(self, new: Confirmed, counts_B: Tensor, k: int) -> DraftBuilder:
        """Return the draft to be made."""
        return DraftBuilder(
            new,
            counts_B,
            k,
            probabilistic=self._probabilistic,
            target_ids_U=self._network.target_ids_U,
            vocab_size=self._network.vocab_size,
        )


class ChainProposer(PagedProposer):
    """Runs a drafter over confirmed tokens, then over its own draft tokens, for all sequences together.

    The row for token n goes to page slot n, or, together with the target's state at n - 1, to slot n - 1, as in vLLM.
    Rows of draft tokens come after the confirmed ones, and the next confirmed tokens overwrite them.

    If the drafter's context is shorter than the target's, by its positions or a sliding window, longer sequences
    continue without drafts.

    Args:
        drafter: network with the target's token ids.
        parallel: make all draft tokens in one pass, with unknown tokens masked (P-EAGLE; PARD, arXiv 2504.18583).
    """

    def __init__(
        self, drafter: ChainDrafter, *, max_model_len: int, probabilistic: bool = False, parallel: bool = False
    ) -> None:
        super().__init__(drafter, probabilistic=probabilistic, max_model_len=max_model_len)
        self._drafter, self._parallel = drafter, parallel

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Add `new`; draft up to k tokens each, fewer near the end of the context."""
        spans = new.spans.shift(-bool(self.aux_layers))
        ends_B = spans.starts_B + spans.lengths_B
        counts_B = torch.minimum(new.limits_B, self._reach + 1 - ends_B).clamp_(0, k)
        draft = self._begin(new, counts_B, k)
        if self._parallel and draft.num_steps > 0:
            self._in_parallel(new, spans, counts_B, draft)
        else:
            self._one_by_one(new, spans, ends_B, draft)
        return draft.to_draft()

    def _one_by_one(self, new: Confirmed, spans: Spans, ends_B: Tensor, draft: DraftBuilder) -> None:
        """Run the confirmed rows, which end before positions `ends_B`; make each draft token from the one before it."""
        chain = self._drafter.chain
        if chain is not None and draft.is_chain and not self.kv.is_narrow and spans.num_rows:
            draft.take(self._in_one_call(chain, new, spans, ends_B, draft.num_steps))
            return
        if draft.num_steps == 0:
            plan = self._plan(new, spans).wanting_none()
            self._drafter.forward(new.tokens_N, self._enter(new), plan.positions_N, self.kv, plan)
            return
        hidden_BH, carry_BH = self._run(new, spans, new.tokens_N, self._enter(new))
        tokens_B = draft.add(0, self._drafter.logits(hidden_BH))
        spans = spans.with_runs(ends_B, torch.ones_like(ends_B), 1)
        for step in range(1, draft.num_steps):
            hidden_BH, carry_BH = self._run(new, spans.shift(step - 1), tokens_B, carry_BH)
            tokens_B = draft.add(step, self._drafter.logits(hidden_BH))

    def _in_one_call(
        self, chain: QuantizedChain, new: Confirmed, spans: Spans, ends_B: Tensor, num_steps: int
    ) -> Tensor:
        """Return the draft tokens [B, num_steps] that `_one_by_one` makes."""
        plan, num_seqs, count = self._plan(new, spans), spans.num_seqs, num_steps - 1
        rows = replace(rows_of(plan), wanted_R=spans.last_row_B)
        further = torch.empty(2, 0, num_seqs, dtype=torch.int64)
        if count:
            behind = self._plan(new, spans.with_runs(ends_B, torch.full_like(ends_B, count), count))
            further = torch.stack((behind.positions_N, behind.slots_N)).view(2, num_seqs, count).mT.contiguous()
        state_NH = self._enter(new)
        if state_NH is not None:  # it is overwritten
            state_NH = state_NH.float().contiguous() if state_NH is not new.features_NF else state_NH.float().clone()
        positions = plan.positions_N, (further[0], further[1])
        return chain(new.tokens_N.contiguous(), state_NH, self.kv, rows, *positions)

    def _in_parallel(self, new: Confirmed, spans: Spans, counts_B: Tensor, draft: DraftBuilder) -> None:
        """Make all draft tokens in one pass, each from a mask except the first."""
        num_masks_B, num_steps = (counts_B - 1).clamp_(min=0), draft.num_steps
        wide = spans.with_runs(spans.starts_B, spans.lengths_B + num_masks_B, spans.width + num_steps - 1)
        tokens_N, carry_NH = self._with_masks(new, spans, wide)
        hidden_NH, _ = self._run(new, wide, tokens_N, carry_NH, wants_all=True)
        first_B = wide.first_row_B + spans.lengths_B - 1
        rows_BM = first_B.unsqueeze(1) + torch.arange(num_steps, device=first_B.device)
        # Where fewer are wanted, the rows of another sequence are taken in place of those that do not exist.
        draft.add_all(self._drafter.logits(hidden_NH[rows_BM.flatten().clamp_(0, wide.num_rows - 1)]))

    def _with_masks(self, new: Confirmed, spans: Spans, wide: Spans) -> tuple[Tensor, Tensor | None]:
        """Return tokens and states of the rows of `wide`: a sequence's own ones, and masks behind them."""
        mask = self._drafter.mask
        assert mask is not None
        offsets_W = torch.arange(wide.width, device=spans.starts_B.device)
        own_BW = spans.first_row_B.unsqueeze(1) + offsets_W
        # The mask goes behind the last row.
        rows_N = wide.pack(torch.where(offsets_W < spans.lengths_B.unsqueeze(1), own_BW, spans.num_rows))
        tokens_N = F.pad(new.tokens_N, (0, 1), value=mask.token_id)[rows_N]
        entered_NH = self._enter(new)
        if entered_NH is None:
            return tokens_N, None
        assert mask.features_F is not None, "a network that reads states has them for its mask too"
        mask_1H = self._drafter.enter(mask.features_F.unsqueeze(0))
        return tokens_N, torch.cat((entered_NH, mask_1H))[rows_N]

    def _enter(self, new: Confirmed) -> Tensor | None:
        """Return what the confirmed rows get of the target's states."""
        if not self.aux_layers:
            return None
        assert new.features_NF is not None
        return self._drafter.enter(new.features_NF)

    def _run(
        self, new: Confirmed, spans: Spans, tokens_N: Tensor, carry_NH: Tensor | None, *, wants_all: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Run the drafter over the rows of `spans`; return hidden_BH and what the next rows get, of the last row of
        each sequence, or, where one `wants_all`, of all rows."""
        plan = self._plan(new, spans)
        plan = plan if wants_all else plan.wanting_last()
        hidden_NH, carry_NH = self._drafter.forward(tokens_N, carry_NH, plan.positions_N, self.kv, plan)
        if wants_all or plan.wanted is not None or spans.width == 1:
            return hidden_NH, carry_NH
        rows_B = spans.last_row_B
        return hidden_NH[rows_B], None if carry_NH is None else carry_NH[rows_B]


def build_chain(drafter: ChainDrafter, spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of a network that drafts token by token or, with `parallel_drafting`, in one pass.

    Raises:
        InvalidSetup: `parallel_drafting` is set, but the drafter has no mask token.
    """
    if spec.parallel_drafting and drafter.mask is None:
        raise refusal("parallel-drafting-needs-mask-token")
    return ChainProposer(
        drafter,
        max_model_len=find_longest_context(config, target),
        probabilistic=spec.probabilistic,
        parallel=spec.parallel_drafting,
    )


def find_longest_context(config: EngineConfig, target: CausalLM) -> int:
    """Return the maximum length of a sequence in tokens."""
    return config.max_model_len or target.shape.max_position_embeddings
