"""Drafting token by token with a network that keeps keys and values: draft models, EAGLE, EAGLE-3, MTP.

Shape letters: B sequences, A of them still drafting, N rows of a pass, K draft tokens, F features of a token, H hidden
size, U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwise.engine.attention import PagedKV, plan_attention
from draftwise.engine.models.drafter import Drafter, Mask
from draftwise.engine.proposers.base import Confirmed, Draft, Proposer
from draftwise.engine.proposers.choice import choose

__all__ = ["ChainProposer", "Drafter", "Mask"]


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


class ChainProposer(Proposer):
    """Runs a drafter over what was confirmed, then over its own guesses, all sequences together.

    The row for token n goes to page slot n, or, with the target's state at n - 1 beside it, to slot n - 1, as in vLLM.
    Rows of guesses lie behind the confirmed ones and are overwritten by what is confirmed next.

    Args:
        drafter: the network; its token ids must mean what the target's mean.
        max_model_len: the target's longest context; the drafter's own limit may end drafts before it.
        probabilistic: draw guesses at the request's temperature and return what they were drawn from (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        parallel: make all guesses in one pass, the unknown tokens masked (P-EAGLE; PARD, arXiv 2504.18583).
    """

    def __init__(
        self, drafter: Drafter, *, max_model_len: int, probabilistic: bool = False, parallel: bool = False
    ) -> None:
        assert not parallel or drafter.mask is not None
        self._drafter = drafter
        self._limit = min(max_model_len, drafter.kv_shape.max_position_embeddings)
        self._probabilistic, self._parallel = probabilistic, parallel
        self.taps = drafter.taps
        self.kv_bytes_per_token = drafter.kv_shape.kv_bytes_per_token(drafter.dtype.itemsize)

    def allocate(self, *, num_pages: int, block_size: int) -> None:
        """Make the drafter's cache."""
        shape, dtype, device = self._drafter.kv_shape, self._drafter.dtype, self._drafter.device
        self._kv = PagedKV(shape, num_pages=num_pages, block_size=block_size, dtype=dtype, device=device)

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new`; draft up to k tokens each, fewer near the end of the context."""
        tasks = [
            self._task(start, length, min(limit, k))
            for start, length, limit in zip(new.starts, new.lengths_B.tolist(), new.limits, strict=True)
        ]
        guesses = _Guesses(new, [task.num_guesses for task in tasks], k, self._drafter, self._probabilistic)
        if any(task.num_rows for task in tasks):
            (self._in_parallel if self._parallel else self._one_by_one)(new, tasks, guesses)
        return guesses.to_draft()

    def release(self, slot: int) -> None:
        """Nothing to forget: what is kept lies in the sequence's pages."""

    def _task(self, start: int, length: int, wanted: int) -> _Task:
        """Return what to do for a sequence with `length` new tokens from position `start` on."""
        start -= bool(self.taps)
        return _Task(
            start=start,
            num_rows=min(length, max(self._limit - start, 0)),
            num_guesses=max(min(wanted, self._limit + 1 - start - length), 0),
        )

    def _one_by_one(self, new: Confirmed, tasks: list[_Task], guesses: _Guesses) -> None:
        """Make each guess from the one before it."""
        hidden_NH, carry_NH, last_rows = self._first_pass(new, tasks, [0] * len(tasks))
        active = guesses.active(0)
        rows_A = _to_device([last_rows[b] for b in active], hidden_NH.device)
        for step in range(guesses.num_steps):
            carry_AH = None if carry_NH is None else carry_NH[rows_A]
            tokens_A = guesses.add(step, self._drafter.logits(hidden_NH[rows_A]))
            remaining = guesses.active(step + 1)
            if not remaining:
                return
            if len(remaining) < len(active):
                kept_A = _to_device([active.index(b) for b in remaining], tokens_A.device)
                tokens_A, carry_AH = tokens_A[kept_A], None if carry_AH is None else carry_AH[kept_A]
            active = remaining
            places = [tasks[b].end + step for b in active]
            hidden_NH, carry_NH = self._forward(
                new, active, tokens_A, carry_AH, places, [1] * len(active), [place + 1 for place in places]
            )
            rows_A = torch.arange(len(active), device=hidden_NH.device)

    def _in_parallel(self, new: Confirmed, tasks: list[_Task], guesses: _Guesses) -> None:
        """Make all guesses in one pass, each from a mask except the first."""
        num_masks = [max(task.num_guesses - 1, 0) for task in tasks]
        hidden_NH, _, last_rows = self._first_pass(new, tasks, num_masks)
        for step in range(guesses.num_steps):
            rows_A = _to_device([last_rows[b] + step for b in guesses.active(step)], hidden_NH.device)
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
        tokens_N = _to_device(tokens, self._drafter.device)
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
        return self._drafter.enter(features_NF)[_to_device(sources, features_NF.device)]

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
        positions_N = _to_device(places, self._drafter.device)
        return self._drafter.forward(tokens_N, carry_NH, positions_N, self._kv, plan)


class _Guesses:
    """The draft in the making."""

    def __init__(self, new: Confirmed, counts: list[int], k: int, drafter: Drafter, probabilistic: bool) -> None:
        self._new, self._counts, self._drafter, self._probabilistic = new, counts, drafter, probabilistic
        self._tokens_BK = torch.zeros(len(counts), k, dtype=torch.long, device=drafter.device)
        self._probs_BKV = None
        if probabilistic:
            self._probs_BKV = torch.zeros(len(counts), k, drafter.vocab_size, device=drafter.device)
        self._num_known = [start + length for start, length in zip(new.starts, new.lengths_B.tolist(), strict=True)]
        self.num_steps = max(counts, default=0)

    def active(self, step: int) -> list[int]:
        """Return the sequences that want a guess number `step`."""
        return [b for b, count in enumerate(self._counts) if count > step]

    def add(self, step: int, logits_AU: Tensor) -> Tensor:
        """Choose guess number `step` of the active sequences; return the tokens [A]."""
        new, active = self._new, self.active(step)
        tokens_A, probs_AV = choose(
            logits_AU,
            temperature=[new.temperature[b] for b in active] if self._probabilistic else (),
            seeds=[new.seeds[b] for b in active] if self._probabilistic else (),
            positions=[self._num_known[b] - new.num_prompt[b] + step for b in active],
            probabilistic=self._probabilistic,
            target_ids_U=self._drafter.target_ids_U,
            vocab_size=self._drafter.vocab_size,
        )
        rows = slice(None) if len(active) == len(self._counts) else _to_device(active, tokens_A.device)
        self._tokens_BK[rows, step] = tokens_A
        if self._probs_BKV is not None and probs_AV is not None:
            self._probs_BKV[rows, step] = probs_AV
        return tokens_A

    def to_draft(self) -> Draft:
        """Return what was guessed."""
        lengths_B = _to_device(self._counts, self._tokens_BK.device)
        return Draft(tokens_BK=self._tokens_BK, lengths_B=lengths_B, probs_BKV=self._probs_BKV)


def _to_device(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.long, device=device)
