"""A block-parallel drafter fills in all draft tokens in one pass (DFlash, arXiv 2602.06036).

Shape letters: B sequences, N rows of a pass, R draft tokens of all sequences, H hidden size, U tokens that the drafter
can name.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.engine.models import CausalLM
from draftwise.engine.models.dflash import DFlash, load_dflash
from draftwise.engine.proposers.base import Confirmed
from draftwise.engine.proposers.paged import PagedProposer
from draftwise.engine.sampling.draft import Draft

__all__ = ["DFlashProposer"]


class DFlashProposer(PagedProposer):
    """Runs a DFlash network over each sequence's last token and a mask for every draft token.

    Its context is the target's states: their keys and values go to the page slots of their own positions. Those of
    the block lie behind them and are overwritten by the states that are confirmed next.

    Drafts go on to the end of the context: a drafter whose sliding window is shorter is refused when it is loaded.

    Args:
        network: the drafter.
        max_model_len: see `PagedProposer`.
        probabilistic: likewise. Draft tokens of a block are drawn independently of each other.
    """

    nests = False  # the tokens of a block look at each other

    def __init__(self, network: DFlash, *, max_model_len: int, probabilistic: bool = False) -> None:
        super().__init__(network, probabilistic=probabilistic, max_model_len=max_model_len)
        self._drafter = network

    @classmethod
    def load(
        cls,
        path: str | Path,
        target: CausalLM,
        *,
        max_model_len: int,
        k: int | None = None,
        probabilistic: bool = False,
    ) -> DFlashProposer:
        """Return the proposer of a checkpoint directory.

        Args:
            path: plain or speculators-format DFlash checkpoint.
            target: the model that it drafts for.
            max_model_len: see `load_dflash`.
            k: most draft tokens that will be asked for, to be checked against the drafter's block.
            probabilistic: see the class.

        Raises:
            InvalidSetup: see `load_dflash`; or the drafter was trained on shorter blocks than will be asked for.
        """
        network = load_dflash(path, target, max_model_len=max_model_len)
        block_size = network.settings.block_size
        if k is not None and block_size is not None and k >= block_size:
            raise InvalidSetup.because(
                "block-too-long",
                f"A block of {block_size} tokens has no room for {k} draft tokens beside the last token. They look at "
                "each other, so those that the drafter was not trained to make would spoil the others.",
                where=str(Path(path) / "config.json"),
                fix=f"Set num_speculative_tokens to {block_size - 1} or less.",
            )
        return cls(network, max_model_len=max_model_len, probabilistic=probabilistic)

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Store the context of `new`; draft up to k tokens for each sequence that wants some."""
        assert new.features_NF is not None
        # The states beside a token are those of the position before it.
        context = self._plan(new, new.spans.shift(-1))
        self._drafter.store_context(new.features_NF, context.positions_N, self.kv, context.slots_N)
        counts_B = new.limits_B.clamp(0, k)
        draft = self._begin(new, counts_B, k)
        if draft.num_steps > 0:
            draft.add_all(self._draft_logits(new, counts_B, draft.num_steps))
        return draft.to_draft()

    def _draft_logits(self, new: Confirmed, counts_B: Tensor, num_steps: int) -> Tensor:
        """Return logits_RU of the masks of all sequences; those behind a shorter block are another mask's."""
        spans, settings = new.spans, self._drafter.settings
        blocks = spans.with_runs(spans.starts_B + spans.lengths_B - 1, counts_B + 1, num_steps + 1)
        last_B1 = new.tokens_N[spans.last_row_B].unsqueeze(1)
        tokens_N = blocks.pack(F.pad(last_B1, (0, num_steps), value=settings.mask_token_id))
        plans = {causal: self._plan(new, blocks, causal=causal) for causal in sorted(set(settings.causal_layers))}
        positions_N = plans[settings.causal_layers[0]].positions_N
        hidden_NH = self._drafter.forward(tokens_N, positions_N, self.kv, plans)
        return self._drafter.logits(blocks.unpack(hidden_NH)[:, 1:].flatten(0, 1))
