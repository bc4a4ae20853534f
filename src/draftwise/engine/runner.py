"""Owner of the step's tensors: builds the batch, runs the target over it, and says what follows.

Shape letters: B sequences that sample, S = K+1 target rows a sequence, K draft tokens, N tokens of the
step, R rows of logits, V vocabulary, H hidden size, F features of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from draftwise.engine.acceptance import Acceptance
from draftwise.engine.attention import PagedKV, plan_attention
from draftwise.engine.logits import SamplingRow, process_logits
from draftwise.engine.logprobs import top_logprobs
from draftwise.engine.models import CausalLM
from draftwise.engine.outputs import LogprobsOfToken
from draftwise.engine.proposers.base import Draft
from draftwise.engine.scheduler import Work
from draftwise.engine.verify import verify

__all__ = ["Outcome", "Runner"]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a step says about one sequence."""

    emitted: list[int]
    """Accepted drafts and the token after them; empty while a prompt is still being computed."""
    logprobs: list[LogprobsOfToken] | None = None
    prompt_logprobs: list[LogprobsOfToken] | None = None
    """Of the prompt tokens after each position computed in this step."""
    features_NF: Tensor | None = None
    """The tapped states of the positions that this step made final, beside each other."""


class Runner:
    """Runs the target model over scheduled work."""

    def __init__(
        self,
        model: CausalLM,
        kv: PagedKV,
        *,
        acceptance: Acceptance,
        end_ids: frozenset[int],
        taps: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.kv = kv
        self._taps = taps
        self._acceptance = acceptance
        self._end_ids = end_ids

    @torch.inference_mode()
    def execute(self, works: list[Work]) -> list[Outcome]:
        """Compute `works` and return an outcome for each, in order."""
        hidden_NH, features_NF = self._forward(works)
        ends = torch.tensor([work.num_new for work in works]).cumsum(0).tolist()
        outcomes = [Outcome(emitted=[]) for _ in works]
        sampling = [i for i, work in enumerate(works) if work.samples]
        if sampling:
            rows = [range(ends[i] - works[i].num_draft - 1, ends[i]) for i in sampling]
            verdicts = self._sample([works[i] for i in sampling], hidden_NH, rows)
            for i, outcome in zip(sampling, verdicts, strict=True):
                outcomes[i] = outcome
        for work, outcome, (start, end) in zip(works, outcomes, pairwise([0, *ends]), strict=True):
            if work.sequence.params.prompt_logprobs is not None:
                outcome.prompt_logprobs = self._prompt_logprobs(work, hidden_NH[start:end])
            if features_NF is not None:
                num_final = work.num_new - work.num_draft + max(len(outcome.emitted) - 1, 0)
                outcome.features_NF = features_NF[start : start + num_final]
        return outcomes

    def _forward(self, works: list[Work]) -> tuple[Tensor, Tensor | None]:
        """Run the target over the step's final and drafted tokens; return hidden_NH and the tapped states."""
        tokens: list[int] = []
        positions: list[int] = []
        for work in works:
            sequence, start = work.sequence, work.sequence.num_computed
            tokens += sequence.tokens[start : start + work.num_new - work.num_draft]
            tokens += sequence.draft[: work.num_draft]
            positions += range(start, start + work.num_new)
        device = self.model.device
        plan = plan_attention(
            query_lens=[work.num_new for work in works],
            context_lens=[work.sequence.num_computed + work.num_new for work in works],
            page_tables=[work.sequence.pages for work in works],
            block_size=self.kv.block_size,
            device=device,
        )
        tokens_N = torch.tensor(tokens, device=device)
        positions_N = torch.tensor(positions, device=device)
        hidden_NH, tapped = self.model(tokens_N, positions_N, self.kv, plan, self._taps)
        if not tapped:
            return hidden_NH, None
        return hidden_NH, tapped[0] if len(tapped) == 1 else torch.cat(tapped, dim=-1)

    def _sample(self, works: list[Work], hidden_NH: Tensor, rows: list[range]) -> list[Outcome]:
        """Verify the drafts of `works` and sample what follows."""
        device = self.model.device
        flat = [row for span in rows for row in span]
        logits_RV = self.model.logits(hidden_NH if len(flat) == len(hidden_NH) else hidden_NH[flat])
        logits_BSV = _pad(logits_RV, [len(span) for span in rows])
        draft = _stack_drafts(works, k=logits_BSV.shape[1] - 1, device=device)
        sampling_rows = [self._sampling_row(work) for work in works]
        greedy = [work.sequence.params.greedy for work in works]
        verdict = verify(
            process_logits(logits_BSV, sampling_rows, draft.tokens_BK),
            draft,
            greedy_B=None if all(greedy) else torch.tensor(greedy, device=device),
            seeds_B=torch.tensor([work.sequence.seed for work in works], device=device),
            positions_B=torch.tensor([work.sequence.num_output for work in works], device=device),
            acceptance=self._acceptance,
        )
        outcomes = [
            Outcome(emitted=tokens[: accepted + 1])
            for tokens, accepted in zip(verdict.tokens_BS.tolist(), verdict.num_accepted_B.tolist(), strict=True)
        ]
        for work, outcome, raw_SV in zip(works, outcomes, logits_BSV, strict=True):
            if work.sequence.params.logprobs is not None:
                outcome.logprobs = _logprobs(raw_SV, outcome.emitted, work.sequence.params.logprobs)
        return outcomes

    def _sampling_row(self, work: Work) -> SamplingRow:
        sequence = work.sequence
        return SamplingRow(
            params=sequence.params,
            prompt_ids=sequence.request.prompt_token_ids,
            output_ids=sequence.output if sequence.params.needs_history else [],
            end_ids=self._end_ids,
            bad_words=sequence.bad_words,
        )

    def _prompt_logprobs(self, work: Work, hidden_NH: Tensor) -> list[LogprobsOfToken]:
        """Return the log-probabilities of the prompt tokens that follow the positions computed here."""
        sequence, start = work.sequence, work.sequence.num_computed
        targets = sequence.request.prompt_token_ids[start + 1 : start + 1 + len(hidden_NH)]
        if not targets:
            return []
        logits_RV = self.model.logits(hidden_NH[: len(targets)])
        return _logprobs(logits_RV, targets, sequence.params.prompt_logprobs or 0)


def _pad(logits_RV: Tensor, lengths: list[int]) -> Tensor:
    """Return [B, S, V] from flat rows; short sequences repeat their last row."""
    longest = max(lengths)
    if longest == min(lengths):
        return logits_RV.view(len(lengths), longest, -1)
    index, start = [], 0
    for length in lengths:
        index.append([start + min(s, length - 1) for s in range(longest)])
        start += length
    return logits_RV[torch.tensor(index, device=logits_RV.device)]


def _stack_drafts(works: list[Work], *, k: int, device: torch.device) -> Draft:
    """Return the batch's draft from what each sequence carries."""
    rows = [work.sequence.draft[: work.num_draft] for work in works]
    draft = Draft.from_lists(rows, k, device=device)
    probs = [work.sequence.draft_probs_KV for work in works]
    known = next((p for p in probs if p is not None), None)
    if known is None or k == 0:
        return draft
    probs_BKV = torch.zeros(len(works), k, known.shape[-1], device=device)
    for b, (row, p_KV) in enumerate(zip(rows, probs, strict=True)):
        if p_KV is not None and row:
            probs_BKV[b, : len(row)] = p_KV[: len(row)]
    return Draft(tokens_BK=draft.tokens_BK, lengths_B=draft.lengths_B, probs_BKV=probs_BKV)


def _logprobs(logits_RV: Tensor, token_ids: list[int], k: int) -> list[LogprobsOfToken]:
    logits_RV = logits_RV[: len(token_ids)]
    ids_R = torch.tensor(token_ids, device=logits_RV.device)
    return top_logprobs(torch.log_softmax(logits_RV.float(), dim=-1), ids_R, k)
