"""Outputs of the engine: increments while it runs, and results in vLLM's form at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from draftwise.core import SpecStats


class Logprob(NamedTuple):
    """Log-probability of one candidate token. A tuple, because a step may make hundreds."""

    logprob: float
    rank: int
    """Rank in the vocabulary; 1 is the most likely token."""
    decoded_token: str = ""


RankedRow = tuple[list[int], list[float], int]
"""Candidates at one position, their log-probabilities, and the rank of the first, as read from the device."""

LogprobsOfToken = dict[int, Logprob]
"""Candidates at one position by token id: the sampled (or prompt) token, and the most likely ones."""


@dataclass(slots=True, kw_only=True)
class Delta:
    """One step's increment to one completion of a request.

    Treat it as read-only. It is not frozen because a step may make thousands, and freezing makes each slower.
    """

    request_id: str
    index: int
    """Index among the request's n completions."""
    token_ids: list[int]
    text: str
    """New text. May lag behind the tokens by an incomplete character or a possible stop string."""
    logprobs: list[LogprobsOfToken] | None = None
    prompt_logprobs: list[LogprobsOfToken | None] | None = None
    """Arrives in pieces before the request's first token. The first prompt token has None."""
    finish_reason: str | None = None
    """`stop` (end token, stop id or stop string), `length` or `abort`; None while running."""
    stop_reason: int | str | None = None
    """Stop id or stop string that ended it; None for the end-of-sequence token."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""
    scheduled_s: float | None = None
    """Time when computation began, on the monotonic clock; may be set in the first delta only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the start, and current gauges."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the page pool held by sequences, 0..1."""
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Prompt tokens found there."""
    num_preemptions: int
    spec: SpecStats

    def readings(self, *, speculates: bool) -> dict[str, float]:
        """Return the values of vLLM's metrics (see `knowledge.metrics`), except those of draft positions."""
        readings = {
            "vllm:num_requests_running": self.num_running,
            "vllm:num_requests_waiting": self.num_waiting,
            "vllm:kv_cache_usage_perc": self.kv_cache_usage,
            "vllm:prompt_tokens": self.prompt_tokens,
            "vllm:generation_tokens": self.generation_tokens,
            "vllm:prefix_cache_queries": self.prefix_cache_queries,
            "vllm:prefix_cache_hits": self.prefix_cache_hits,
            "vllm:num_preemptions": self.num_preemptions,
        }
        if speculates:
            readings["vllm:spec_decode_num_drafts"] = self.spec.num_drafts
            readings["vllm:spec_decode_num_draft_tokens"] = self.spec.num_draft_tokens
            readings["vllm:spec_decode_num_accepted_tokens"] = self.spec.num_accepted_tokens
        return readings


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of a request's n completions."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[LogprobsOfToken] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """The result of one prompt, in vLLM's form."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[LogprobsOfToken | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0
