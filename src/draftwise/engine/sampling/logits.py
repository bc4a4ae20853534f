"""Applies sampling parameters that depend on history or single tokens to the target's logits, in vLLM's order.

Row s of a sequence is treated as if its draft tokens 0..s-1 were already output: penalties count them, bad words see
them, min_tokens includes them. Rows after the draft's end are computed but unused.

The order is that of vLLM 0.32's `v1/sample/sampler.py`: bad words, min_tokens, logit_bias, penalties (repetition,
frequency, presence); temperature, min_p, top-k and top-p follow in `tempering`. The host decides what applies to which
row, so this part of a step is not captured. Few requests need it. Nothing waits for the device, and no argument is
changed. Penalties count tokens on the device, so a step with penalties need not wait for the host to know the previous
step's tokens.

Shape letters: T slots, B sequences, S = K+1 target rows a sequence, K draft tokens, V vocabulary, N sequences that need
the operation at hand, W bad words, P tokens before the last of the longest bad word.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from draftwise.core import Finding
from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import kernels_for


class TokenCounts:
    """Token counts of the sequences in a table's slots. Allocated when the first sequence has penalties."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (num_slots, vocab_size), device
        self._tables: tuple[Tensor, Tensor] | None = None

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Return in_prompt_TV (bool) and num_output_TV (int32)."""
        if self._tables is None:
            in_prompt_TV = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
            self._tables = in_prompt_TV, torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        return self._tables

    def enter(self, slots: Sequence[int], prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> None:
        """Assign slots to new sequences, given their prompts and current outputs."""
        slots_N = upload(slots, self._device)
        in_prompt_TV, num_output_TV = self.tables
        in_prompt_TV.index_fill_(0, slots_N, 0)
        num_output_TV.index_fill_(0, slots_N, 0)
        in_prompt_TV.view(-1).index_fill_(0, self._cells(slots, prompts), 1)
        cells_X = self._cells(slots, outputs)
        num_output_TV.view(-1).scatter_add_(0, cells_X, torch.ones_like(cells_X, dtype=torch.int32))

    def _cells(self, slots: Sequence[int], histories: Sequence[Sequence[int]]) -> Tensor:
        """Return where the tokens of all histories lie in a table."""
        pairs = zip(slots, histories, strict=True)
        cells = [np.asarray(tokens, np.int64) + slot * self._shape[1] for slot, tokens in pairs]
        return upload(np.concatenate(cells), self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """The penalties of a step's sequences."""

    counts: TokenCounts
    members_N: Tensor
    """int64, index among the B sequences."""
    member_B: Tensor
    """int64, index among these for each of B; -1: no penalties."""
    slots_N: Tensor
    """int64."""
    settings_N3: Tensor
    """float64: repetition, frequency, presence."""

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], slots: Sequence[int], counts: TokenCounts, device: torch.device
    ) -> Penalties | None:
        """Return the penalties of B sequences; None without any."""
        members = [b for b, each in enumerate(params) if each.penalizes]
        if not members:
            return None
        chosen = [params[b] for b in members]
        settings = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in chosen]
        unused = [-1] * (len(params) - len(members))
        places = np.full(len(params), -1)
        places[members] = np.arange(len(members))
        members_B, slots_B, member_B = upload(
            [members + unused, [slots[b] for b in members] + unused, places.tolist()], device
        )
        return cls(
            counts=counts,
            members_N=members_B[: len(members)],
            member_B=member_B,
            slots_N=slots_B[: len(members)],
            settings_N3=upload(settings, device, np.float64),
        )

    def apply(self, logits_BSV: Tensor, draft_BK: Tensor) -> Tensor:
        """Return the changed logits: repetition for tokens of prompt and output, the others for those of the output.

        Args:
            logits_BSV: any float type; half precision is widened. Sequences past the B-th have no penalties.
            draft_BK: int64; row s counts draft tokens 0..s-1 as output.
        """
        in_prompt_TV, num_output_TV = self.counts.tables
        if kernels := kernels_for(logits_BSV):
            settings_N3 = self.settings_N3.float()
            return kernels.penalize(
                logits_BSV, draft_BK, self.member_B, self.slots_N, settings_N3, in_prompt_TV, num_output_TV
            )
        changed_BSV = logits_BSV.to(torch.promote_types(logits_BSV.dtype, torch.float32), copy=True)
        logits_NSV = changed_BSV[self.members_N]
        count_NSV = torch.zeros_like(logits_NSV)
        count_NSV[:, 1:].scatter_(2, draft_BK[self.members_N].unsqueeze(2), 1)
        count_NSV = count_NSV.cumsum_(1).add_(num_output_TV[self.slots_N].unsqueeze(1))
        repetition, frequency, presence = self.settings_N3.to(logits_NSV.dtype).t()[:, :, None, None]
        seen_NSV = (count_NSV > 0) | in_prompt_TV[self.slots_N].unsqueeze(1)
        scaled_NSV = torch.where(logits_NSV > 0, logits_NSV / repetition, logits_NSV * repetition)
        logits_NSV = torch.where(seen_NSV, scaled_NSV, logits_NSV)
        logits_NSV -= frequency * count_NSV
        logits_NSV -= presence * (count_NSV > 0)
        changed_BSV[self.members_N] = logits_NSV
        return changed_BSV

    def count(self, tokens_BS: Tensor) -> None:
        """Count the tokens that a step emitted: int64, -1 after the end."""
        tokens_NS = tokens_BS[self.members_N]
        _, num_output_TV = self.counts.tables
        cells_NS = tokens_NS.clamp(min=0) + self.slots_N.unsqueeze(1) * num_output_TV.shape[1]
        num_output_TV.view(-1).scatter_add_(0, cells_NS.flatten(), (tokens_NS >= 0).flatten().int())


_NO_TOKEN, _ANY_TOKEN = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """Everything except the model that one sequence's logits depend on."""

    params: SamplingParams
    output_ids: Sequence[int] = ()
    """Output tokens; may be empty unless `params.needs_history`."""
    end_ids: Collection[int] = ()
    """End-of-sequence ids, forbidden like the stop ids before min_tokens (also with ignore_eos, as in vLLM)."""
    bad_words: Sequence[Sequence[int]] = ()
    """`params.bad_words` after `encode_bad_words`."""


def adjust(
    logits_BSV: Tensor, rows: Sequence[SamplingRow], draft_tokens_BK: Tensor, penalties: Penalties | None = None
) -> Tensor:
    """Return the logits after everything that also affects greedy requests, or the input itself if nothing applies.

    Args:
        logits_BSV: the model's logits, any float type; half precision is widened if anything applies.
        draft_tokens_BK: int64; padding must be valid token ids, as `Draft` promises.
    """
    needed = (
        (partial(_forbid_bad_words, draft_BK=draft_tokens_BK), [b for b, row in enumerate(rows) if row.bad_words]),
        (_forbid_ending, [b for b, row in enumerate(rows) if row.params.min_tokens > len(row.output_ids)]),
        (_add_bias, [b for b, row in enumerate(rows) if row.params.logit_bias]),
    )
    assert draft_tokens_BK.shape == (len(rows), logits_BSV.shape[1] - 1)
    if any(members for _, members in needed):
        logits_BSV = _widened(logits_BSV)
    for change, members in needed:
        if members:
            change(logits_BSV, rows, members)
    return logits_BSV if penalties is None else penalties.apply(logits_BSV, draft_tokens_BK)


_NAMED = 8
"""Wrong ids that a message names."""


def check_params(params: SamplingParams, vocab_size: int) -> list[Finding]:
    """Return an error for each parameter with a token outside 0..vocab_size-1."""
    named = {
        "logit_bias": params.logit_bias or {},
        "stop_token_ids": params.stop_token_ids,
        "forced_token_ids": params.forced_token_ids or (),
    }
    findings = []
    for where, ids in named.items():
        unknown = [token for token in ids if not 0 <= token < vocab_size]
        if unknown:
            some = ", ".join(str(token) if abs(token) < 2**63 else "a huge number" for token in unknown[:_NAMED])
            some += f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
            predicate = "is not a token id" if len(unknown) == 1 else "are not token ids"
            message = f"{some} {predicate}: the vocabulary has 0..{vocab_size - 1}."
            fix = "Use ids of this model's tokenizer."
            findings.append(Finding.error("unknown-token", message, where=where, fix=fix))
    return findings


def _widened(logits: Tensor) -> Tensor:
    """Return a copy: float32 for half precision, otherwise the same type."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)


def _forbid_bad_words(logits_BSV: Tensor, rows: Sequence[SamplingRow], members: list[int], draft_BK: Tensor) -> None:
    """Forbid the last token of a bad word wherever the tokens before it have just been output."""
    device, num_rows = logits_BSV.device, logits_BSV.shape[1]
    words = [(n, word) for n, b in enumerate(members) for word in rows[b].bad_words]
    length = max(1, *(len(word) - 1 for _, word in words))
    tails = [[_NO_TOKEN] * length + list(rows[b].output_ids[-length:]) for b in members]
    tails_NP = upload([tail[-length:] for tail in tails], device)
    owner_W = upload([n for n, _ in words], device)
    sequence_W = upload([members[n] for n, _ in words], device)
    last_W = upload([word[-1] for _, word in words], device)
    prefixes = [[_ANY_TOKEN] * (length - len(word) + 1) + list(word[:-1]) for _, word in words]
    prefix_WP = upload(prefixes, device)

    members_N = upload(members, device)
    # Window s of a sequence holds the P tokens before row s.
    windows_NSP = torch.cat([tails_NP, draft_BK[members_N]], dim=1).unfold(1, length, 1)
    same_WSP = windows_NSP[owner_W] == prefix_WP.unsqueeze(1)
    completes_WS = (same_WSP | (prefix_WP == _ANY_TOKEN).unsqueeze(1)).all(-1)
    change_WS = torch.zeros_like(completes_WS, dtype=logits_BSV.dtype).masked_fill_(completes_WS, -torch.inf)
    row_S = torch.arange(num_rows, device=device)
    logits_BSV.index_put_((sequence_W.unsqueeze(1), row_S, last_W.unsqueeze(1)), change_WS, accumulate=True)


def _forbid_ending(logits_BSV: Tensor, rows: Sequence[SamplingRow], members: list[int]) -> None:
    """Forbid end and stop ids in the rows before min_tokens is reached."""
    places = [
        (b, s, token)
        for b in members
        for s in range(min(rows[b].params.min_tokens - len(rows[b].output_ids), logits_BSV.shape[1]))
        for token in {*rows[b].end_ids, *rows[b].params.stop_token_ids}
    ]
    if places:
        index = upload(places, logits_BSV.device).unbind(1)
        logits_BSV.index_put_(index, logits_BSV.new_full((), -torch.inf))


def _add_bias(logits_BSV: Tensor, rows: Sequence[SamplingRow], members: list[int]) -> None:
    """Add logit_bias to every row."""
    biases = [(b, token, bias) for b in members for token, bias in (rows[b].params.logit_bias or {}).items()]
    sequence, token, bias = zip(*biases, strict=True)
    device = logits_BSV.device
    index = (
        upload(sequence, device).unsqueeze(1),
        torch.arange(logits_BSV.shape[1], device=device),
        upload(token, device).unsqueeze(1),
    )
    bias_N1 = upload(bias, device, np.float64).to(logits_BSV.dtype).unsqueeze(1)
    logits_BSV[index] = logits_BSV[index] + bias_N1  # no place comes twice; accumulating would sort them
