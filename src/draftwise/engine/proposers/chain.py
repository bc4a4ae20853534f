"""Drafting token by token with a network that keeps keys and values: draft models, EAGLE, EAGLE-3, MTP.

Shape letters: A sequences still drafting, N rows of a pass, F features of a token, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.attention import plan_attention
from draftwise.engine.models.drafter import Drafter
from draftwise.engine.proposers.base import Confirmed, Draft
from draftwise.engine.proposers.paged import Guesses, PagedProposer, to_device

__all__ = ["ChainProposer"]


@dataclass(frozen=True, slots=True)
class _Task:
    """What to do for one sequence."""

    start: int
    """Position of its first row."""
    num_rows: int
    """Confirmed rows to compute."""
    num_guesses: int

    @property
    def end(self) -> int:
        """Position of the first row that is not confirmed."""
        return self.start + self.num_rows


class ChainProposer(PagedProposer):
    """Runs a drafter over what was confirmed, then over its own guesses, all sequences together.

    The row for token n goes to page slot n, or, with the target's state at n - 1 beside it, to slot n - 1, as in vLLM.
    Rows of guesses lie behind the confirmed ones and are overwritten by what is confirmed next.

    Where the drafter reaches less far than the target, by its positions or by a sliding window (up to whose length
    attention is the full one), a sequence that grows beyond is decoded on without drafts.

    Args:
        drafter: the network; its token ids must mean what the target's mean.
        max_model_len: the target's longest context.
        probabilistic: draw guesses at the request's temperature and return what they were drawn from (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        parallel: make all guesses in one pass, the unknown tokens masked (P-EAGLE; PARD, arXiv 2504.18583).
    """

    def __init__(
        self, drafter: Drafter, *, max_model_len: int, probabilistic: bool = False, parallel: bool = False
    ) -> None:
        super().__init__(drafter)
        assert not parallel or drafter.mask is not None
        self._drafter = drafter
        self._limit = min(max_model_len, drafter.kv_shape.max_position_embeddings)
        self._probabilistic, self._parallel = probabilistic, parallel

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new`; draft up to k tokens each, fewer near the end of the context."""
        tasks = [
            self._task(start, length, min(limit, k))
            for start, length, limit in zip(new.starts, new.lengths_B.tolist(), new.limits, strict=True)
        ]
        counts = [task.num_guesses for task in tasks]
        guesses = Guesses(new, counts, k, self._drafter, probabilistic=self._probabilistic)
        if any(task.num_rows for task in tasks):
            (self._in_parallel if self._parallel else self._one_by_one)(new, tasks, guesses)
        return guesses.to_draft()

    def _task(self, start: int, length: int, wanted: int) -> _Task:
        """Return what to do for a sequence with `length` new tokens from position `start` on."""
        start -= bool(self.taps)
        return _Task(
            start=start,
            num_rows=min(length, max(self._limit - start, 0)),
            num_guesses=max(min(wanted, self._limit + 1 - start - length), 0),
        )

    def _one_by_one(self, new: Confirmed, tasks: list[_Task], guesses: Guesses) -> None:
        """Make each guess from the one before it."""
        hidden_NH, carry_NH, last_rows = self._first_pass(new, tasks, [0] * len(tasks))
        active = guesses.active(0)
        rows_A = to_device([last_rows[b] for b in active], hidden_NH.device)
        for step in range(guesses.num_steps):
            carry_AH = None if carry_NH is None else carry_NH[rows_A]
            tokens_A = guesses.add(step, self._drafter.logits(hidden_NH[rows_A]))
            remaining = guesses.active(step + 1)
            if not remaining:
                return
            if len(remaining) < len(active):
                kept_A = to_device([active.index(b) for b in remaining], tokens_A.device)
                tokens_A, carry_AH = tokens_A[kept_A], None if carry_AH is None else carry_AH[kept_A]
            active = remaining
            places = [tasks[b].end + step for b in active]
            hidden_NH, carry_NH = self._forward(
                new, active, tokens_A, carry_AH, places, [1] * len(active), [place + 1 for place in places]
            )
            rows_A = torch.arange(len(active), device=hidden_NH.device)

    def _in_parallel(self, new: Confirmed, tasks: list[_Task], guesses: Guesses) -> None:
        """Make all guesses in one pass, each from a mask except the first."""
        num_masks = [max(task.num_guesses - 1, 0) for task in tasks]
        hidden_NH, _, last_rows = self._first_pass(new, tasks, num_masks)
        for step in range(guesses.num_steps):
            rows_A = to_device([last_rows[b] + step for b in guesses.active(step)], hidden_NH.device)
            guesses.add(step, self._drafter.logits(hidden_NH[rows_A]))

    def _first_pass(
        self, new: Confirmed, tasks: list[_Task], num_masks: list[int]
    ) -> tuple[Tensor, Tensor | None, list[int]]:
        """Run the confirmed rows, each sequence's masks behind its own.

        Returns:
            hidden_NH, carry_NH, and the row of each sequence's last token.
        """
        mask = self._drafter.mask
        tokens: list[int] = []
        sources: list[int] = []
        places: list[int] = []
        last_rows: list[int] = []
        offset = 0
        for task, row, masks in zip(tasks, new.to_lists(), num_masks, strict=True):
            tokens += row[: task.num_rows]
            last_rows.append(len(tokens) - 1)
            sources += [*range(offset, offset + task.num_rows), *[-1] * masks]
            offset += len(row)
            tokens += [mask.token_id if mask is not None else 0] * masks
            places += range(task.start, task.end + masks)
        carry_NH = self._carry(new, sources)
        computed = [b for b, task in enumerate(tasks) if task.num_rows]
        lengths = [tasks[b].num_rows + num_masks[b] for b in computed]
        ends = [tasks[b].start + length for b, length in zip(computed, lengths, strict=True)]
        tokens_N = to_device(tokens, self._drafter.device)
        return *self._forward(new, computed, tokens_N, carry_NH, places, lengths, ends), last_rows

    def _carry(self, new: Confirmed, sources: list[int]) -> Tensor | None:
        """Return what the rows are told of the target's states; -1 is the mask's."""
        features_NF, mask = new.features_NF, self._drafter.mask
        if features_NF is None or not self.taps:
            return None
        if sources and sources[-1] == len(features_NF) - 1 == len(sources) - 1 and min(sources) == 0:
            return self._drafter.enter(features_NF)
        if mask is not None and mask.features_F is not None:
            features_NF = torch.cat((features_NF, mask.features_F.unsqueeze(0)))
        return self._drafter.enter(features_NF)[to_device(sources, features_NF.device)]

    def _forward(
        self,
        new: Confirmed,
        rows: list[int],
        tokens_N: Tensor,
        carry_NH: Tensor | None,
        places: list[int],
        lengths: list[int],
        ends: list[int],
    ) -> tuple[Tensor, Tensor | None]:
        """Run the drafter over `lengths` rows of each of the sequences `rows`, which end before positions `ends`."""
        plan = plan_attention(
            query_lens=lengths,
            context_lens=ends,
            page_tables=[new.pages[b] for b in rows],
            block_size=self._kv.block_size,
            device=self._drafter.device,
        )
        positions_N = to_device(places, self._drafter.device)
        return self._drafter.forward(tokens_N, carry_NH, positions_N, self._kv, plan)
