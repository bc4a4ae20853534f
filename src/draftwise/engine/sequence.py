"""One completion in the making: its tokens, its pages and how far each of them has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from draftwise.engine.outputs import LogprobsOfToken
from draftwise.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from draftwise.engine.tokenizer import IncrementalDetokenizer

__all__ = ["Request", "Sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt and how its n completions are to be sampled."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str = ""
    """Prefixes are shared with requests of the same salt only."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """State of one completion; the scheduler moves it, the engine fills it."""

    request: Request
    index: int
    seed: int
    tokens: list[int]
    """Final tokens: the prompt, then the output."""
    detokenizer: IncrementalDetokenizer
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain."""
    prompt_logprobs: list[LogprobsOfToken] = field(default_factory=list)
    """Of prompt tokens 1, 2, ..., as far as computed, if asked for."""

    num_computed: int = 0
    """Leading tokens whose keys and values are in `pages`."""
    pages: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    """Keys of the leading full pages of `tokens`, as far as they were needed."""
    num_published: int = 0
    """Leading pages already offered to the prefix cache."""
    num_cached: int | None = None
    """Prompt tokens that the prefix cache spared at first admission; None before it."""

    slot: int | None = None
    """Row of per-sequence state in the proposer; None while not running."""
    num_spared: int = 0
    """Leading tokens that the prefix cache spared when it last started to run."""
    num_confirmed: int | None = None
    """Leading tokens that the proposer knows; None when it has not heard of the sequence since it started to run."""
    features_NF: Any = None
    """What the target tapped for the tokens that the proposer does not know yet; None when it taps nothing."""
    draft: list[int] = field(default_factory=list)
    draft_probs_KV: Any = None

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def awaits_token(self) -> bool:
        """Whether all but its last token are computed, so that the next step gives a new one."""
        return self.num_computed == len(self.tokens) - 1

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """Tokens generated so far (a copy)."""
        return self.tokens[self.num_prompt :]
