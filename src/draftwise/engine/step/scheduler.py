"""Decides which sequences compute how many tokens in a step, and tracks their progress. Uses no tensors."""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import TYPE_CHECKING

from draftwise.engine.engine_outputs import RankedRow
from draftwise.engine.memory.pages import PagePool, page_key, root_key
from draftwise.engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from draftwise.engine.sampling.grammar import Grammar
    from draftwise.engine.text.detokenizer import IncrementalDetokenizer


_RANKED = (5, 20)
"""Numbers of tokens to rank; requests are rounded up, so few kinds of steps are captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A prompt, with the sampling parameters of its n completions."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str = ""
    """Prefixes are shared only among requests with the same salt."""


@dataclass(frozen=True, slots=True)
class StepTraits:
    """What a request's sampling parameters require of each step."""

    greedy: bool
    truncates: bool
    """See `SamplingParams.truncates`."""
    needs_history: bool
    """See `SamplingParams.needs_history`."""
    needs_host: bool
    """Whether decoding steps need the host between the target's pass and the verification."""
    num_ranked: int | None
    """Number of tokens to rank at each position, rounded up; None: no ranking."""

    @classmethod
    def of(cls, params: SamplingParams) -> StepTraits:
        """Return the traits for sampling parameters."""
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
    """State of one completion. The scheduler advances it, the engine fills it."""

    request: EngineRequest
    params: SamplingParams = field(init=False)
    """The request's."""
    traits: StepTraits = field(init=False)
    num_prompt: int = field(init=False)
    """Tokens of the prompt."""
    index: int
    seed: int
    max_tokens: int
    """Maximum tokens, prompt and output together."""
    tokens: list[int]
    """Final tokens: the prompt, then the output."""
    detokenizer: IncrementalDetokenizer
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain."""
    grammar: Grammar | None = None
    """Progress in the grammar that the output must match, after all of `tokens`."""
    prompt_ranks: list[RankedRow] = field(default_factory=list)
    """Rows of prompt tokens 1, 2, ..., as far as computed, if their log-probabilities are requested."""
    num_prompt_told: int = 0
    """Number of prompt tokens whose log-probabilities were delivered; the first has none."""

    num_computed: int = 0
    """Number of leading tokens whose keys and values are in `pages`, or will be after running steps."""
    pages: list[int] = field(default_factory=list)
    page_keys: list[bytes] = field(default_factory=list)
    """Keys of the leading full pages of `tokens`, computed as needed."""
    num_published: int = 0
    """Number of leading pages already offered to the prefix cache."""
    num_cached: int | None = None
    """Prompt tokens found in the prefix cache at first admission; None before."""

    scheduled_s: float | None = None
    """Time when its computation began, on the monotonic clock."""

    slot: int | None = None
    """Row of the device's table; None while not running."""
    life: int = 0
    """Number of times that it gave up its slot. Results of earlier lives do not belong to it."""
    is_decoding: bool = False
    """Whether all tokens except the last are computed. The table knows the last one, the host perhaps not yet."""
    num_underway: int = 0
    """Number of launched but uncollected steps that give it tokens, at least one each."""
    max_underway: int = 0
    """Maximum tokens from those steps."""
    num_prefix_cached: int = 0
    """Number of leading tokens in the prefix cache when it last started to run."""

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
        """Number of tokens left; for forced tokens, the number of remaining ones."""
        forced = self.params.forced_token_ids
        ahead = self.max_tokens if forced is None else len(forced) - self.num_output
        return min(self.max_tokens - len(self.tokens), ahead)

    @property
    def longest(self) -> int:
        """Maximum number of tokens so far, including running steps."""
        return len(self.tokens) + self.max_underway

    @property
    def num_output(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def output(self) -> list[int]:
        """Tokens generated so far (a copy)."""
        return self.tokens[self.num_prompt :]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute before it decodes: its prompt, or its whole text after a preemption."""

    sequence: Sequence
    start: int
    length: int

    @property
    def end(self) -> int:
        """Position after the last one."""
        return self.start + self.length

    @property
    def is_last(self) -> bool:
        """Whether the sequence's next token follows from it. Ask before that token is collected."""
        return self.end == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class PageChange:
    """A page newly assigned to a running sequence."""

    slot: int
    index: int
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """The work of a step: chunks first, then one token and a draft for each decoding sequence."""

    chunks: list[Chunk]
    decodes: list[Sequence]
    k: int
    """Maximum draft tokens per sequence."""
    released_slots: list[int]
    """Slots released since the last schedule."""
    page_changes: list[PageChange]
    """Pages assigned since the last schedule, in order."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)


class PrefixUse(Enum):
    """How many cached pages of a prompt are used."""

    ALL = "all"
    BUT_LAST = "but last"
    """The state for a page's last token may depend on the next token, which may differ after a shared prefix. So the
    last common page is computed again (as in vLLM for EAGLE)."""
    NONE = "none"


class Scheduler:
    """Continuous batching: running sequences first, then waiting ones, as long as pages and tokens suffice.

    Long prompts are computed in chunks. If pages run out, the youngest running sequence is preempted: it releases its
    pages and is later computed again from its start. A decoding sequence may be scheduled again before its last step is
    collected. Pages then cover the maximum number of its tokens.

    Args:
        max_num_batched_tokens: maximum tokens per step. Prompts get what decoding leaves, at least a page.
        prefix: how much of a cached prefix to use.

    Attributes:
        most_rows_between: maximum prompt tokens in a step with decoding sequences. None: no limit.
        most_shared_rows: maximum rows of a pass shared by both, if there is such a limit.
        ranked_row: number of tokens as which one with log-probabilities counts there.
    """

    def __init__(
        self,
        *,
        pool: PagePool,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix: PrefixUse = PrefixUse.ALL,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.most_rows_between: int | None = None
        self.most_shared_rows = 0
        self.ranked_row = 1.0
        self._prefix = prefix
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._slots = list(range(max_num_seqs))[::-1]
        self._released_slots: list[int] = []
        self._page_changes: list[PageChange] = []
        self.num_preemptions = 0
        self.num_cache_queries = 0
        self.num_cache_hits = 0

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """Queue a sequence; with `first`, ahead of those already waiting."""
        (self.waiting.appendleft if first else self.waiting.append)(sequence)

    def schedule(self, k: int) -> StepSchedule | None:
        """Return this step's work, with drafts of up to k tokens. Its pages are allocated.

        None: pages ran out, but sequences that end in running steps may release some. Collect those steps and call
        again; only then is a sequence preempted.
        """
        before = self.num_preemptions
        decodes = self._schedule_decodes(k)
        if decodes is None:
            return None
        budget = max(self.max_num_batched_tokens - len(decodes) * (k + 1), self.block_size)
        most = self._limit_between(len(decodes) * (k + 1)) if decodes else None
        budget = budget if most is None else min(budget, most)
        chunks: list[Chunk] = []

        def take(sequence: Sequence) -> None:
            nonlocal budget
            weight = self.ranked_row if most is not None and sequence.params.prompt_logprobs is not None else 1
            chunks.append(self._next_chunk(sequence, ceil(budget / weight)))
            budget -= ceil(chunks[-1].length * weight)

        for sequence in self.running:
            if not sequence.is_decoding and budget > 0:
                take(sequence)
        # What was just preempted would come straight back.
        while self.num_preemptions == before and self.waiting and self._slots and budget > 0:
            if not self._admit(self.waiting[0]):
                break
            take(self.running[-1])
        released, self._released_slots = self._released_slots, []
        changes, self._page_changes = self._page_changes, []
        return StepSchedule(chunks=chunks, decodes=decodes, k=k, released_slots=released, page_changes=changes)

    def launch(self, schedule: StepSchedule) -> None:
        """Record that the step is launched."""
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            sequence.num_computed = chunk.end
            if chunk.is_last:
                sequence.is_decoding = True
                sequence.num_underway, sequence.max_underway = 1, 1
        for sequence in schedule.decodes:
            sequence.num_underway += 1
            sequence.max_underway += schedule.k + 1

    def advance(self, sequence: Sequence, emitted: abc.Sequence[int], *, bound: int) -> None:
        """Record that a step, of at most `bound` tokens, gave a sequence these tokens."""
        sequence.num_underway -= 1
        sequence.max_underway -= bound
        sequence.tokens.extend(emitted)
        sequence.num_computed = len(sequence.tokens) - 1

    def has_unpublished(self, sequence: Sequence) -> bool:
        """Return whether full computed pages are not published yet."""
        return self.pool.caching and sequence.num_computed // self.block_size > sequence.num_published

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Publish the full pages of the first `num_tokens` tokens for later requests with the same prefix."""
        num_full = num_tokens // self.block_size
        if self.pool.caching and num_full > sequence.num_published:
            self._extend_keys(sequence, num_full)
            for i in range(sequence.num_published, num_full):
                self.pool.publish(sequence.pages[i], sequence.page_keys[i])
            sequence.num_published = num_full

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or aborted sequence, running or waiting."""
        if sequence.slot is not None:
            self._give_up(sequence)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _schedule_decodes(self, k: int) -> list[Sequence] | None:
        """Return the sequences that decode, with pages for their next token and, where there are some, for a draft."""
        decodes: list[Sequence] = []
        for sequence in [each for each in self.running if each.is_decoding]:
            if sequence.slot is None or sequence.num_left <= sequence.num_underway:
                continue  # preempted by an older one; or what is under way ends it
            if sequence.grammar is not None and not sequence.grammar.is_ready:
                continue
            while not self._ensure_pages(sequence, sequence.longest):
                if any(each.num_underway for each in self.running):
                    return None
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            if sequence.slot is not None:
                decodes.append(sequence)
        for sequence in decodes:
            self._reserve(sequence, k)
        return decodes

    def _reserve(self, sequence: Sequence, k: int) -> None:
        """Hold pages for a draft too, as far as they last.

        A page for each running sequence is left free: a draft is never worth a preemption.
        """
        spare = max(self.pool.num_free - len(self.running), 0)
        room = (len(sequence.pages) + spare) * self.block_size
        self._ensure_pages(sequence, min(sequence.longest + k, room))

    def _limit_between(self, num_rows: int) -> int | None:
        """Return the most tokens of prompts in a step in which this many rows decode.

        A pass of their own reads all weights again: they get one only where they have many more than they could share.
        """
        most, left = self.most_rows_between, self.most_shared_rows - num_rows
        return most if most is None or most <= left else left if most <= 2 * left else max(most, self.block_size)

    def _next_chunk(self, sequence: Sequence, budget: int) -> Chunk:
        return Chunk(sequence, sequence.num_computed, min(len(sequence.tokens) - sequence.num_computed, budget))

    def _admit(self, sequence: Sequence) -> bool:
        """Start a waiting sequence if its whole text and a token more fit into free pages."""
        reused = self._find_cached_pages(sequence)
        self.pool.hold(reused)
        num_missing = -(-(len(sequence.tokens) + 1) // self.block_size) - len(reused)
        if num_missing > self.pool.num_free:
            self.pool.free(reused)
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.slot = self._slots.pop()
        self._give(sequence, reused)
        self._ensure_pages(sequence, len(sequence.tokens) + 1)
        sequence.num_computed = sequence.num_prefix_cached = len(reused) * self.block_size
        sequence.num_published = len(reused)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self.num_cache_queries += len(sequence.tokens)
            self.num_cache_hits += sequence.num_computed
        return True

    def _find_cached_pages(self, sequence: Sequence) -> list[int]:
        """Return published pages for the start of the text, leaving at least one token to compute."""
        if sequence.params.prompt_logprobs is not None or self._prefix is PrefixUse.NONE:
            return []  # every position of the prompt must be computed, for its log-probabilities or the proposer
        self._extend_keys(sequence, (len(sequence.tokens) - 1) // self.block_size)
        pages = self.pool.find_prefix(sequence.page_keys[: (len(sequence.tokens) - 1) // self.block_size])
        return pages[:-1] if self._prefix is PrefixUse.BUT_LAST else pages

    def _extend_keys(self, sequence: Sequence, count: int) -> None:
        keys, size = sequence.page_keys, self.block_size
        salt = sequence.request.cache_salt
        while len(keys) < count:
            start = len(keys) * size
            keys.append(page_key(keys[-1] if keys else root_key(salt), sequence.tokens[start : start + size]))

    def _ensure_pages(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hold pages for `num_tokens` tokens; False when the pool has too few."""
        missing = -(-min(num_tokens, sequence.max_tokens) // self.block_size) - len(sequence.pages)
        if missing > 0:
            pages = self.pool.allocate(missing)
            if pages is None:
                return False
            self._give(sequence, pages)
        return True

    def _give(self, sequence: Sequence, pages: list[int]) -> None:
        assert sequence.slot is not None
        self._page_changes += [
            PageChange(sequence.slot, index, page) for index, page in enumerate(pages, len(sequence.pages))
        ]
        sequence.pages += pages

    def _preempt(self, sequence: Sequence) -> None:
        sequence.prompt_ranks.clear()  # its prompt is computed again
        self._give_up(sequence)
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Take everything that a running sequence holds; its tokens stay."""
        assert sequence.slot is not None
        self.pool.free(sequence.pages)
        sequence.pages, sequence.num_computed, sequence.num_published = [], 0, 0
        sequence.is_decoding, sequence.num_underway, sequence.max_underway = False, 0, 0
        self._slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        self._page_changes = [change for change in self._page_changes if change.slot != sequence.slot]
        sequence.slot = None
        sequence.life += 1
