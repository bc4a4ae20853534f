"""Holds one completion in progress: its tokens, its pages and the progress of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftwise.engine.engine_outputs import RankedRow
from draftwise.engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from draftwise.engine.sampling.grammar import Grammar
    from draftwise.engine.text.detokenizer import IncrementalDetokenizer

_RANKED = (5, 20)
"""Tokens that are ranked where a request asks for fewer, so that few kinds of steps are captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A prompt and how its n completions are to be sampled."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str = ""
    """Prefixes are shared with requests of the same salt only."""


@dataclass(frozen=True, slots=True)
class StepTraits:
    """The demands of a request's sampling parameters on each of its steps."""

    greedy: bool
    truncates: bool
    """See `SamplingParams.truncates`."""
    needs_history: bool
    """See `SamplingParams.needs_history`."""
    needs_host: bool
    """Whether decoding steps need the host between the target's pass and the verification."""
    num_ranked: int | None
    """Tokens to rank at each position, one of few numbers; None: none."""

    @classmethod
    def of(cls, params: SamplingParams) -> StepTraits:
        """Return the demands of a request."""
        ranked = params.logprobs
        if ranked is not None:
            ranked = next((each for each in _RANKED if each >= ranked), ranked)
        many = ranked is not None and ranked > _RANKED[-1]  # each number would have graphs of its own
        return cls(
            greedy=params.greedy,
            truncates=params.truncates,
            needs_history=params.needs_history,
            needs_host=many or params.needs_adjusting or params.structured_outputs is not None,
            num_ranked=ranked,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """State of one completion; the scheduler moves it, the engine fills it."""

    request: EngineRequest
    params: SamplingParams = field(init=False)
    """The request's."""
    traits: StepTraits = field(init=False)
    num_prompt: int = field(init=False)
    """Tokens of the prompt."""
    index: int
    seed: int
    max_tokens: int
    """How many tokens it may have, prompt and output together."""
    tokens: list[int]
    """Final tokens: the prompt, then the output."""
    detokenizer: IncrementalDetokenizer
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain."""
    grammar: Grammar | None = None
    """Progress in the grammar that the output must match, after all of `tokens`."""
    prompt_ranks: list[RankedRow] = field(default_factory=list)
    """Rows of prompt tokens 1, 2, ..., as far as computed, if a request asks for their log-probabilities."""
    num_prompt_told: int = 0
    """Prompt tokens whose log-probabilities its reader has; the first one has none."""

    num_computed: int = 0
    """Leading tokens whose keys and values are in `pages`, or will be by what is under way."""
    pages: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    """Keys of the leading full pages of `tokens`, as far as they were needed."""
    num_published: int = 0
    """Leading pages already offered to the prefix cache."""
    num_cached: int | None = None
    """Prompt tokens that were in the prefix cache at first admission; None before it."""

    scheduled_s: float | None = None
    """When its computation first began, on the monotonic clock."""

    slot: int | None = None
    """Row of the device's table; None while not running."""
    life: int = 0
    """How often it has given up its slot: what was under way by then is not its any more."""
    is_decoding: bool = False
    """Whether all of its tokens are computed but the last, which the table knows (the host perhaps not yet)."""
    num_underway: int = 0
    """Steps launched and not collected that give it tokens, at least one each."""
    max_underway: int = 0
    """How many tokens those steps give it at most."""
    num_prefix_cached: int = 0
    """Leading tokens that were in the prefix cache when it last started to run."""

    def __post_init__(self) -> None:
        self.params = self.request.params
        self.traits = StepTraits.of(self.params)
        self.num_prompt = len(self.request.prompt_token_ids)

    @property
    def row(self) -> int:
        """Its slot, while it is running."""
        assert self.slot is not None, "only a running sequence has one"
        return self.slot

    @property
    def num_left(self) -> int:
        """How many more tokens it may have; where they are forced, how many there are."""
        forced = self.params.forced_token_ids
        ahead = self.max_tokens if forced is None else len(forced) - self.num_output
        return min(self.max_tokens - len(self.tokens), ahead)

    @property
    def longest(self) -> int:
        """How many tokens it may have by now, those under way included."""
        return len(self.tokens) + self.max_underway

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """Tokens generated so far (a copy)."""
        return self.tokens[self.num_prompt :]
