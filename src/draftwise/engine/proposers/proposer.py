"""The one signature of every drafting method.

Shape letters: B sequences, N rows of new tokens, K draft tokens (padded), P pages, F features of a token, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from draftwise.checkpoints.identity import check_identity
from draftwise.engine.attention.pass_rows import Spans
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """What the target has just made final, for B sequences.

    A sequence's first `Confirmed` brings its prompt, perhaps in chunks (a proposer `on_host` gets it with the first
    tokens that follow); each later one brings the tokens emitted by one step. Nothing in it is ever taken back.

    A proposer that reads auxiliary hidden states gets those of one position for every token: of the token *before* it,
    from which the target predicted it (EAGLE's pairing). So its first `Confirmed` starts at the second computed token.

    All tensors are on the engine's device, where a proposer must not wait for their values: on a GPU the call is
    captured as a CUDA graph. Only a proposer that is `on_host` may look, and gets tensors of the CPU.
    """

    slots_B: Tensor
    """int64, state row of each sequence: its own from the first `Confirmed` until `release(slot)`."""
    spans: Spans
    """Positions of the new tokens, at least one for each sequence."""
    tokens_N: Tensor
    """int64, a row for each new token, as `spans` lays them out."""
    num_prompt_B: Tensor
    """int64, how many tokens of each sequence (counted from its start) are its prompt."""
    limits_B: Tensor
    """int64, draft tokens wanted of each sequence at most: 0 while its prompt is being computed, fewer than k near its
    end."""
    page_table_BP: Tensor
    """int32, pages that each sequence holds, with room for its tokens and `limits_B` more; see `plan_attention`."""
    features_NF: Tensor | None = None
    """The auxiliary hidden states, concatenated, a row for each new token."""
    temperature_B: Tensor
    """float32, sampling temperature; 0 is greedy. Only probabilistic drafting looks at it."""
    seeds_B: Tensor
    """int64, seed of each sequence's random stream. Only probabilistic drafting looks at it."""
    told_BK: Tensor | None = None
    """int64, for replays: draft tokens to go on with in place of the drafter's own, -1 where it has its choice."""
    wants_confidence: bool = False
    """Whether a replay needs the confidence of the draft, if the drafter is a model."""
    histories: tuple[Sequence[int], ...] = ()
    """[B] all final tokens of each sequence: the engine's own lists, for a proposer that is `on_host`."""

    @property
    def num_output_B(self) -> Tensor:
        """int64, how many tokens each sequence has put out."""
        return self.spans.starts_B + self.spans.lengths_B - self.num_prompt_B

    def to_lists(self) -> list[list[int]]:
        """Return the tokens of each sequence; only for a proposer that is `on_host`."""
        assert self.spans.host is not None
        tokens = iter(self.tokens_N.tolist())
        return [[next(tokens) for _ in range(length)] for _, length in self.spans.host]


class Proposer(ABC):
    """A state machine over confirmed tokens: notified of what became final, it drafts what follows.

    It never sees the runner, the scheduler or a rejected token, so there is nothing to roll back:
    whatever it computed for draft tokens that were rejected is overwritten when the next tokens are confirmed.

    State per token (keys and values) goes to the pages that the engine gives the sequence anyway: the proposer holds
    a second cache over the same page ids. Prefix caching, preemption and forks then work for it as they do for the
    target, and what it kept for a prefix-cached text is still there. What it wrote for position i must follow from the
    tokens up to i + 1 and their states alone.
    """

    aux_layers: tuple[int, ...] = ()
    """Hidden states of the target that it reads: i is the residual stream that enters layer i, the number of layers L
    what the last layer leaves, L + 1 the same after the final norm (what the target's head reads)."""
    num_layers: int = 0
    """Decoder layers of its network."""
    kv_bytes_per_token: int = 0
    """Size of its state in pages; 0: it keeps none."""
    kv: PagedKV | None = None
    """Its keys and values, once they are allocated; None: it keeps none."""
    needs_history: bool = False
    """Whether it must be notified of all tokens of a sequence from position 0, also those that are prefix-cached."""
    needs_every_state: bool = False
    """Whether it must get the states of all tokens, so that no prefix may come from the cache."""
    on_host: bool = False
    """Whether it looks at values; on a GPU it then waits for each step's tokens, and is no part of the CUDA graph."""
    nests: bool = True
    """Whether a shorter draft is the beginning of a longer one."""
    needs_ending: bool = False
    """Whether it must be notified of a sequence's last tokens too, after which there is nothing to draft."""

    def allocate(self, *, num_pages: int, block_size: int) -> None:  # noqa: B027 - most methods keep nothing in pages
        """Make the cache for page ids below `num_pages`; called once, before the first `propose`."""

    @abstractmethod
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and return up to k draft tokens for each of its B sequences, in its order.

        With k = 0 the proposer takes the tokens in and returns an empty draft. A draft is never longer than
        `new.limits_B`.
        """

    @abstractmethod
    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`; the next `Confirmed` for it starts another one.

        Called when a sequence finishes, is aborted or is preempted (then it comes back from its start).
        """


class PlainDecoding(Proposer):
    """Drafts nothing, so that a step gives each sequence one token."""

    def propose(self, new: Confirmed, k: int) -> Draft:  # noqa: ARG002
        """Return empty drafts."""
        return Draft.empty(len(new.slots_B), device=new.slots_B.device)

    def release(self, slot: int) -> None:
        """Nothing to forget."""


Builder = Callable[[ResolvedSpec, EngineConfig, CausalLM], Proposer]
"""(speculative config, engine config, target) -> the proposer; raises InvalidSetup where a drafter does not fit."""


def find_weights(spec: ResolvedSpec, config: EngineConfig) -> str:
    """Return the directory of a drafter's weights: its own or, where it has none, the target's.

    Raises:
        InvalidSetup: they were trained for another target.
    """
    path = spec.model or config.model
    check_identity(path, config.model)
    return path
