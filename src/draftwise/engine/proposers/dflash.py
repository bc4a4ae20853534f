"""A block-parallel drafter fills in all guesses in one pass (DFlash, arXiv 2602.06036).

Shape letters: N rows of a pass, R guesses of all sequences, F features of a token, H hidden size, U tokens that the
drafter can name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.engine.attention import plan_attention
from draftwise.engine.models import CausalLM
from draftwise.engine.models.dflash import DFlash, load_dflash
from draftwise.engine.proposers.base import Confirmed, Draft
from draftwise.engine.proposers.paged import Guesses, PagedProposer, to_device

__all__ = ["DFlashProposer"]


class DFlashProposer(PagedProposer):
    """Runs a DFlash network over each sequence's last token and a mask for every guess.

    Its context is the target's states: their keys and values go to the page slots of their own positions. Those of
    the block lie behind them and are overwritten by the states that are confirmed next.

    Drafts go on to the end of the context: a drafter whose sliding window is shorter is refused when it is loaded.

    Args:
        network: the drafter.
        probabilistic: draw guesses at the request's temperature and return what they were drawn from (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest. Guesses of a block are drawn
            independently of each other.
    """

    def __init__(self, network: DFlash, *, probabilistic: bool = False) -> None:
        super().__init__(network)
        self._network, self._probabilistic = network, probabilistic

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
            k: most guesses that will be asked for, to be checked against the drafter's block.
            probabilistic: see the class.

        Raises:
            InvalidSetup: see `load_dflash`; or the drafter was trained on shorter blocks than will be asked for.
        """
        network = load_dflash(path, target, max_model_len=max_model_len)
        block_size = network.settings.block_size
        if k is not None and block_size is not None and k >= block_size:
            raise InvalidSetup.because(
                "block-too-long",
                f"a block of {block_size} tokens has no room for {k} guesses beside the last token. They look at each "
                "other, so those that the drafter was not trained to make would spoil the others.",
                where=str(Path(path) / "config.json"),
                fix=f"Set num_speculative_tokens to {block_size - 1} or less.",
            )
        return cls(network, probabilistic=probabilistic)

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Store the context of `new`; draft up to k tokens for each sequence that wants some."""
        rows = new.to_lists()
        self._store_context(new, [len(row) for row in rows])
        counts = [min(limit, k) for limit in new.limits]
        drafting = [b for b, count in enumerate(counts) if count > 0]
        if not drafting:
            return Draft.empty(len(rows), k, device=self._network.device)
        guesses = Guesses(new, counts, k, self._network, probabilistic=self._probabilistic)
        guesses.add_all(self._guess(new, rows, counts, drafting))
        return guesses.to_draft()

    def _store_context(self, new: Confirmed, lengths: list[int]) -> None:
        """Store the states beside each sequence's new tokens, which are those of the positions one before them."""
        assert new.features_NF is not None
        size, device = self._kv.block_size, self._network.device
        places = [np.arange(start - 1, start - 1 + length) for start, length in zip(new.starts, lengths, strict=True)]
        slots = [
            np.array(pages, dtype=np.int64)[place // size] * size + place % size
            for pages, place in zip(new.pages, places, strict=True)
        ]
        positions_N, slots_N = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (places, slots))
        self._network.store_context(new.features_NF, positions_N, self._kv, slots_N)

    def _guess(self, new: Confirmed, rows: list[list[int]], counts: list[int], drafting: list[int]) -> Tensor:
        """Return logits_RU of the masks of all drafting sequences."""
        mask, device = self._network.settings.mask_token_id, self._network.device
        tokens: list[int] = []
        positions: list[int] = []
        masks: list[int] = []
        ends: list[int] = []
        for b in drafting:
            last = new.starts[b] + len(rows[b]) - 1
            masks += range(len(tokens) + 1, len(tokens) + 1 + counts[b])
            tokens += [rows[b][-1], *[mask] * counts[b]]
            ends.append(last + counts[b] + 1)
            positions += range(last, ends[-1])
        plans = {
            causal: plan_attention(
                query_lens=[counts[b] + 1 for b in drafting],
                context_lens=ends,
                page_tables=[new.pages[b] for b in drafting],
                block_size=self._kv.block_size,
                device=device,
                causal=causal,
            )
            for causal in set(self._network.settings.causal_layers)
        }
        tokens_N, positions_N, masks_R = (to_device(values, device) for values in (tokens, positions, masks))
        hidden_NH = self._network.forward(tokens_N, positions_N, self._kv, plans)
        return self._network.logits(hidden_NH[masks_R])
