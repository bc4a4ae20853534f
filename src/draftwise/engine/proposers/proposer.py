"""Defines the interface of every drafting method, and builds drafts from a drafter's logits.

Shape letters: B sequences, N rows of new tokens, K draft tokens (padded), M of the longest draft, R = B * M draft
tokens of all sequences, P pages, F features of a token, U tokens that the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.checkpoints.identity import check_identity
from draftwise.engine.attention.pass_rows import Spans
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.kernels.sampling_constants import STEP, Lane
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.tempering import argmax, draw, sharpen, temper


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Tokens that the target has just confirmed, for B sequences.

    A sequence's first `Confirmed` has its prompt, perhaps in chunks (a proposer `on_host` gets it with the first
    following tokens). Each later one has the tokens emitted by one step. Confirmed tokens never change.

    A proposer that reads auxiliary hidden states gets, for every token, those of the token *before* it, from which the
    target predicted it (EAGLE's pairing). So its first `Confirmed` starts at the second computed token.

    All tensors are on the engine's device, and a proposer must not wait for their values: on a GPU, the call is
    captured as a CUDA graph. Only a proposer `on_host` may read values; it gets CPU tensors.
    """

    slots_B: Tensor
    """int64, state row of each sequence: its own from the first `Confirmed` until `release(slot)`."""
    spans: Spans
    """Positions of the new tokens, at least one for each sequence."""
    tokens_N: Tensor
    """int64, a row for each new token, as `spans` lays them out."""
    num_prompt_B: Tensor
    """int64, number of prompt tokens of each sequence, from its start."""
    limits_B: Tensor
    """int64, maximum draft tokens of each sequence: 0 while its prompt is being computed, fewer than k near its end."""
    page_table_BP: Tensor
    """int32, pages of each sequence, with room for its tokens and `limits_B` more; see `plan_attention`."""
    features_NF: Tensor | None = None
    """The auxiliary hidden states, concatenated, a row for each new token."""
    temperature_B: Tensor
    """float32, sampling temperature; 0 is greedy. Used only by probabilistic drafting."""
    seeds_B: Tensor
    """int64, seed of each sequence's random stream. Used only by probabilistic drafting."""
    told_BK: Tensor | None = None
    """int64, for replays: draft tokens that replace the drafter's own; -1: the drafter chooses."""
    wants_confidence: bool = False
    """Whether a replay needs the draft's confidence, if the drafter is a model."""
    histories: tuple[Sequence[int], ...] = ()
    """[B] all confirmed tokens of each sequence: the engine's own lists, for a proposer `on_host`."""

    @property
    def num_output_B(self) -> Tensor:
        """int64, number of output tokens of each sequence."""
        return self.spans.starts_B + self.spans.lengths_B - self.num_prompt_B

    def to_lists(self) -> list[list[int]]:
        """Return the tokens of each sequence. Only for a proposer `on_host`."""
        assert self.spans.host is not None
        tokens = iter(self.tokens_N.tolist())
        return [[next(tokens) for _ in range(length)] for _, length in self.spans.host]


class Proposer(ABC):
    """A state machine over confirmed tokens. Notified of new ones, it drafts what follows.

    It never sees the runner, the scheduler or a rejected token, so it never rolls back: the next confirmed tokens
    overwrite whatever it computed for rejected ones.

    State per token (keys and values) goes to the sequence's own pages: the proposer has a second cache with the same
    page ids. Prefix caching, preemption and forks then work as for the target, and its state for a cached prefix is
    still there. Its state for position i must depend only on the tokens up to i + 1 and their states.
    """

    aux_layers: tuple[int, ...] = ()
    """Hidden states of the target that it reads: i is the input of layer i, L (the number of layers) the last layer's
    output, L + 1 the same after the final norm (the input of the target's head)."""
    num_layers: int = 0
    """Number of decoder layers of its network."""
    kv_bytes_per_token: int = 0
    """Bytes per token of its state in pages; 0: no state."""
    kv: PagedKV | None = None
    """Its keys and values, once allocated; None: no state."""
    needs_history: bool = False
    """Whether it needs all tokens of a sequence from position 0, including prefix-cached ones."""
    needs_every_state: bool = False
    """Whether it needs the states of all tokens, so prefixes cannot come from the cache."""
    on_host: bool = False
    """Whether it reads values on the host. On a GPU, it then waits for each step's tokens, outside CUDA graphs."""
    nests: bool = True
    """Whether a shorter draft is a prefix of a longer one."""
    needs_ending: bool = False
    """Whether it needs a sequence's last tokens, too, after which it drafts nothing."""

    def allocate(self, *, num_pages: int, block_size: int) -> None:  # noqa: B027 - most methods keep nothing in pages
        """Allocate the cache for page ids below `num_pages`. Called once, before the first `propose`."""

    @abstractmethod
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Add `new` and return up to k draft tokens for each of its B sequences, in order.

        With k = 0, it adds the tokens and returns an empty draft. A draft is never longer than `new.limits_B`.
        """

    @abstractmethod
    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`. The slot's next `Confirmed` starts another one.

        Called when a sequence finishes, is aborted or is preempted (then it restarts from its beginning).
        """


class PlainDecoding(Proposer):
    """Drafts nothing: each step gives a sequence one token."""

    def propose(self, new: Confirmed, k: int) -> Draft:  # noqa: ARG002
        """Return empty drafts."""
        return Draft.empty(len(new.slots_B), device=new.slots_B.device)

    def release(self, slot: int) -> None:
        """Do nothing."""


Builder = Callable[[ResolvedSpec, EngineConfig, CausalLM], Proposer]
"""(speculative config, engine config, target) -> proposer. Raises InvalidSetup if a drafter does not match."""


def find_weights(spec: ResolvedSpec, config: EngineConfig) -> str:
    """Return the directory of a drafter's weights: its own, or else the target's.

    Raises:
        InvalidSetup: the weights were trained for another target.
    """
    path = spec.model or config.model
    check_identity(path, config.model)
    return path


class DraftBuilder:
    """Turns logits into draft tokens of static shape. Tokens beyond a sequence's own limit are discarded.

    Args:
        counts_B: int64, draft tokens of each sequence, 0..k.
        probabilistic: see `choose`, like the last two.

    Attributes:
        num_steps: M, or k if only the device knows M.
    """

    def __init__(
        self,
        new: Confirmed,
        counts_B: Tensor,
        k: int,
        *,
        probabilistic: bool,
        target_ids_U: Tensor | None,
        vocab_size: int,
    ) -> None:
        self._new, self._counts_B, self._k = new, counts_B, k
        self._probabilistic, self._target_ids_U, self._vocab_size = probabilistic, target_ids_U, vocab_size
        self._first_B = new.num_output_B * STEP if probabilistic else None
        self._tokens: list[Tensor] = []
        self._probs: list[Tensor] = []
        self._confidence: list[Tensor] = []
        self.num_steps = k if k == 0 or new.spans.host is None else int(counts_B.max())

    @property
    def is_chain(self) -> bool:
        """Whether drafting is plainly greedy."""
        told = self._new.wants_confidence or self._new.told_BK is not None
        return self.num_steps > 0 and not self._probabilistic and not told

    def take(self, tokens_BM: Tensor) -> None:
        """Set all draft tokens."""
        self._tokens.append(tokens_BM)

    def add(self, step: int, logits_BU: Tensor) -> Tensor:
        """Choose draft token number `step` of each sequence; return the tokens [B]."""
        new, first_B = self._new, self._first_B
        positions_B = None if first_B is None else first_B + step
        return self._choose(logits_BU, 1, new.temperature_B, new.seeds_B, positions_B).squeeze(1)

    def add_all(self, logits_RU: Tensor) -> None:
        """Choose all draft tokens at once and independently; rows are ordered by sequence."""
        new, num_steps, first_B = self._new, self.num_steps, self._first_B
        if first_B is None:
            self._choose(logits_RU, num_steps, None, None, None)
            return
        steps_M = torch.arange(num_steps, device=first_B.device)
        temperature_BM, seeds_BM = (t.unsqueeze(1).expand(-1, num_steps) for t in (new.temperature_B, new.seeds_B))
        positions_BM = first_B.unsqueeze(1) + steps_M
        self._choose(logits_RU, num_steps, temperature_BM.flatten(), seeds_BM.flatten(), positions_BM.flatten())

    def to_draft(self) -> Draft:
        """Return the draft."""
        if not self._tokens:
            return Draft.empty(len(self._counts_B), self._k, device=self._counts_B.device)
        padding = self._k - self.num_steps
        probs_BKV = confidence_BK = None
        if self._probs:
            probs_BKV = F.pad(torch.cat(self._probs, dim=1), (0, 0, 0, padding))
        if self._confidence:
            confidence_BK = F.pad(torch.cat(self._confidence, dim=1), (0, padding))
        tokens_BK = self._tokens[0] if len(self._tokens) == 1 else torch.cat(self._tokens, dim=1)
        if padding:
            tokens_BK = F.pad(tokens_BK, (0, padding))
        return Draft(tokens_BK=tokens_BK, lengths_B=self._counts_B, probs_BKV=probs_BKV, confidence_BK=confidence_BK)

    def _choose(
        self,
        logits_RU: Tensor,
        num_steps: int,
        temperature_R: Tensor | None,
        seeds_R: Tensor | None,
        positions_R: Tensor | None,
    ) -> Tensor:
        """Choose the next `num_steps` draft tokens of every sequence; return them, [B, num_steps]."""
        tokens_R, probs_RV = choose(
            logits_RU,
            temperature_B=temperature_R,
            seeds_B=seeds_R,
            positions_B=positions_R,
            probabilistic=self._probabilistic,
            target_ids_U=self._target_ids_U,
            vocab_size=self._vocab_size,
        )
        if probs_RV is not None:
            self._probs.append(probs_RV.view(-1, num_steps, self._vocab_size))
        if self._new.wants_confidence:
            law_RU = logits_RU.float().softmax(-1) if probs_RV is None else probs_RV
            self._confidence.append(law_RU.amax(-1).view(-1, num_steps))
        self._tokens.append(self._told(tokens_R.view(-1, num_steps)))
        return self._tokens[-1]

    def _told(self, tokens_BM: Tensor) -> Tensor:
        """Return the next tokens of a draft as a replay tells them, where it does."""
        if self._new.told_BK is None:
            return tokens_BM
        begin = sum(tokens.shape[1] for tokens in self._tokens)
        told_BM = self._new.told_BK[:, begin : begin + tokens_BM.shape[1]]
        return torch.where(told_BM >= 0, told_BM, tokens_BM)


def choose(
    logits_BU: Tensor,
    *,
    probabilistic: bool,
    target_ids_U: Tensor | None,
    vocab_size: int,
    temperature_B: Tensor | None = None,
    seeds_B: Tensor | None = None,
    positions_B: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the next draft token of each sequence, and its distribution.

    Deterministic drafting costs one argmax, and ignores temperature, seeds and positions. Draws use the lane
    `Lane.DRAFT` of the counter-based noise (Gumbel-max), so a draft token shares no randomness with its acceptance.
    Shapes are static and nothing waits for the device.

    Args:
        logits_BU: the drafter's logits, any float type.
        probabilistic: whether to draw at the temperature. Only then are the last three needed.
        target_ids_U: target id of each token in the drafter's vocabulary, if that is smaller.
        temperature_B: float32 sampling temperature; 0 takes the likeliest token.
        seeds_B: int64, seed of each sequence's random stream.
        positions_B: int64, index of the random number in a stream used only by drafts.

    Returns:
        int64 target ids [B], and with `probabilistic` the float32 distribution [B, V] of each (one-hot where the
        temperature is 0), else None.
    """
    if not probabilistic:
        return argmax(logits_BU, target_ids_U), None
    assert temperature_B is not None
    assert seeds_B is not None
    assert positions_B is not None
    logits_B1U = logits_BU.unsqueeze(1)
    choice_B = draw(logits_B1U, temperature_B, seeds_B=seeds_B, positions_B=positions_B, lane=Lane.DRAFT).squeeze(1)
    law_B1U = sharpen(temper(logits_B1U, temperature_B), temperature_B == 0)
    probs_BV = _spread(law_B1U.squeeze(1).softmax(-1).float(), target_ids_U, vocab_size)
    return choice_B if target_ids_U is None else target_ids_U[choice_B], probs_BV


def _spread(probs_BU: Tensor, target_ids_U: Tensor | None, vocab_size: int) -> Tensor:
    """Return the distribution over the target's vocabulary; tokens that the drafter cannot name have none."""
    if target_ids_U is None:
        assert probs_BU.shape[-1] == vocab_size
        return probs_BU
    return probs_BU.new_zeros(len(probs_BU), vocab_size).index_add_(1, target_ids_U, probs_BU)
