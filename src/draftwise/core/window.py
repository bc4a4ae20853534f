"""The growth of a server's counters between two reads, and the readings computed from it.

Every reading is a ratio of sums, so windows can be pooled, and their length does not matter. Quantiles of histograms
are given only as bounds, because buckets are coarser than the gain of speculation. A reading is None if a part of it is
not reported or its denominator is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from math import inf
from operator import attrgetter

from draftwise.core.counters import Counters, ServerLoad

LONGEST = 16
"""Most tokens of a draft, for servers that count only tokens."""
_BURST = 1.25
"""Ratio of the requests of a step to those over time from which on they come in bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A server's sums over its requests and steps, or their growth; None if not reported.

    The request times, `finished`, `finished_tokens` and `prompt_tokens` grow together when a request ends, so they do
    not match the tokens that `Counters` counted in the meantime.
    """

    decode_s: float | None = None
    """Seconds from the first to the last token, summed over finished requests."""
    prefill_s: float | None = None
    """Seconds from scheduling to the first token, summed over finished requests."""
    queue_s: float | None = None
    """Seconds from arrival to scheduling, summed over finished requests."""
    first_token_s: float | None = None
    """Seconds from arrival to the first token, summed over requests that got one."""
    first_tokens: float | None = None
    """Requests that got their first token."""
    finished: float | None = None
    """Requests that ended."""
    finished_tokens: float | None = None
    """Output tokens of finished requests."""
    prompt_tokens: float | None = None
    """Prompt tokens of finished requests, including cached ones."""
    engine_steps: float | None = None
    """Forward passes over the batch, prefill included."""
    preemptions: float | None = None
    """Requests that lost their KV cache to others and are computed again."""
    aborted: float | None = None
    """Requests that clients aborted."""
    failed: float | None = None
    """Requests that the engine ended with an error."""
    capped: float | None = None
    """Requests that ended at their token limit, or because they repeated themselves."""
    corrupted: float | None = None
    """Requests with NaN among their logits."""
    refused: float | None = None
    """Requests answered with status 4xx; of several engines, the first counts all."""
    broken: float | None = None
    """Likewise, with status 5xx."""

    @classmethod
    def total(cls, every: Iterable[Sums]) -> Sums:
        """Return the sums of several engines or periods; None where one is not reported."""
        columns = zip(*map(get_sums, every), strict=True)
        totals = [None if None in column else sum(column) for column in columns]
        return cls(**dict(zip(SUM_NAMES, totals, strict=True)))

    def __add__(self, other: Sums) -> Sums:
        return Sums.total((self, other))

    def __sub__(self, before: Sums) -> Sums:
        pairs = zip(get_sums(self), get_sums(before), strict=True)
        grown = [None if now is None or then is None else now - then for now, then in pairs]
        return Sums(**dict(zip(SUM_NAMES, grown, strict=True)))


SUM_NAMES = tuple(each.name for each in fields(Sums))
get_sums = attrgetter(*SUM_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One engine between two reads of its counters; `a + b` pools engines over the same period.

    G, A, D and T below are the output tokens, the accepted draft tokens, the drafts and the draft tokens of the window.
    """

    pool: str
    """`spec`, `plain`, or another name for a group of similar servers."""
    instance: str
    """URL or label of the server; joined by `, ` in pooled windows."""
    engine: str = ""
    """The server's label of the data-parallel rank; empty without one, and for pooled ranks."""
    start_s: float
    """Seconds since the epoch."""
    duration_s: float
    """Seconds; the mean of pooled windows, whose ends lie milliseconds apart."""
    counters: Counters
    """Growth over the window."""
    load: ServerLoad = field(default_factory=ServerLoad)
    """Mean of the gauges at its ends; in pooled windows, the requests of all and the KV use of the fullest."""
    sums: Sums = field(default_factory=Sums)
    """Growth over the window."""
    engines: int = 1
    """Number of pooled engines."""
    counts_drafts: bool | None = None
    """Whether any engine has counters of drafts; vLLM has them if, and only if, it was started to speculate. None if
    the server is not known to have such counters."""
    tells_acceptance: bool = True
    """Whether a count of 0 means that nothing was accepted; some servers do not report what they accept."""
    restarted: bool = False
    """Whether an engine restarted within the window; its counters then cover only the time since."""
    ends_idle: bool = False
    """Whether no request is in flight at the end, whatever the mean load; of pooled windows untold."""
    sleeping: bool | None = None
    """Whether an engine is asleep (vLLM's sleep mode); None if not reported."""
    adapters: frozenset[str] = frozenset()
    """Names of the LoRA adapters that requests used."""
    uptime_s: float | None = None
    """Seconds from the start of the process to the window's end; the shortest of pooled windows."""
    cache_dtype: str | None = None
    """Data type of the KV cache; None if not reported, or if pooled windows differ."""
    revision: str = ""
    """Label of the server's roll-out, as `deploy` sets it; empty if not reported, or if pooled windows differ."""
    model: str = ""
    """Served name of the model; empty if not reported, or if pooled windows differ."""
    slower_than: tuple[tuple[float, float], ...] = ()
    """(edge in seconds, finished requests with a mean time per output token beyond it) of a histogram, ascending; the
    edge 0 has all requests."""

    def __add__(self, other: Window) -> Window:
        return Window._pool((self, other))

    def followed_by(self, later: Window) -> Window:
        """Return both as one window of the same engines, gauges weighted by time, gaps left out.

        A process that restarted counts only from its restart, and an engine that fell asleep from then on.
        """
        if later.restarted or (later.sleeping and not self.sleeping):
            return later
        seconds = self.duration_s + later.duration_s
        share = later.duration_s / seconds if seconds else 0.5
        return replace(
            later,
            start_s=self.start_s,
            duration_s=seconds,
            counters=self.counters + later.counters,
            load=_blend(self.load, later.load, share),
            sums=self.sums + later.sums,
            restarted=self.restarted or later.restarted,
            sleeping=_either(self.sleeping, later.sleeping),
            adapters=self.adapters | later.adapters,
            slower_than=_add_edges(self.slower_than, later.slower_than),
        )

    @staticmethod
    def pooled(windows: Iterable[Window]) -> Window | None:
        """Return the windows of several engines over the same period as one; None without windows."""
        every = list(windows)
        return Window._pool(every) if len(every) > 1 else next(iter(every), None)

    @staticmethod
    def _pool(every: Sequence[Window]) -> Window:
        engines = sum(each.engines for each in every)
        uptimes = [each.uptime_s for each in every if each.uptime_s is not None]
        return Window(
            pool=", ".join(dict.fromkeys(each.pool for each in every)),
            instance=", ".join(dict.fromkeys(name for each in every for name in each.instance.split(", "))),
            start_s=min(each.start_s for each in every),
            duration_s=sum(each.duration_s * each.engines for each in every) / engines,
            counters=Counters.total(each.counters for each in every),
            load=reduce(_pool_load, [each.load for each in every]),
            sums=Sums.total([each.sums for each in every]),
            engines=engines,
            counts_drafts=reduce(_either, [each.counts_drafts for each in every]),
            tells_acceptance=all(each.tells_acceptance for each in every),
            restarted=any(each.restarted for each in every),
            sleeping=reduce(_either, [each.sleeping for each in every]),
            adapters=frozenset[str]().union(*(each.adapters for each in every)),
            uptime_s=min(uptimes, default=None),
            cache_dtype=_agree(each.cache_dtype for each in every),
            revision=_agree(each.revision for each in every) or "",
            model=_agree(each.model for each in every) or "",
            slower_than=reduce(_add_edges, [each.slower_than for each in every]),
        )

    @property
    def output_tokens(self) -> int | None:
        """G, in tokens."""
        return self.counters.generation_tokens

    @property
    def sequence_steps(self) -> int | None:
        """S = G - A, in steps: each emits one token more than it accepts.

        Prefill emits the first token of every request, which counts as a step here and matters for short answers.
        """
        tokens = self.output_tokens if self.tells_acceptance else None
        steps = None if tokens is None else tokens - self.counters.spec.num_accepted_tokens
        return None if steps is None or steps < 0 else steps

    @property
    def tokens_per_step(self) -> float | None:
        """G / (G - A), in tokens: 1 without speculation, 1 + coverage x (acceptance length - 1) with it.

        None if the server does not report accepted tokens.
        """
        return self.counters.tokens_per_step if self.tells_acceptance else None

    @property
    def tokens_per_decode_step(self) -> float | None:
        """(G - F) / (G - A - F) with F first tokens, which prefill emits: only the steps after them."""
        first = self.sums.first_tokens if self.tells_acceptance else None
        return None if first is None else self.counters.find_tokens_per_decode_step(first)

    @property
    def coverage(self) -> float | None:
        """D / (G - A), at most 1: the share of the steps that verified a draft."""
        return self.counters.coverage if self.tells_acceptance else None

    @property
    def decode_coverage(self) -> float | None:
        """D / (G - A - F), at most 1: likewise, without the first token of an answer, which has no draft."""
        steps, first = self.sequence_steps, self.sums.first_tokens
        if self.coverage is None or steps is None or first is None or steps <= first:
            return None
        return min(1.0, self.counters.spec.num_drafts / (steps - first))

    @property
    def acceptance_length(self) -> float | None:
        """1 + A / D, in tokens: what a step with a draft emits."""
        return self.counters.spec.acceptance_length

    @property
    def mean_k(self) -> float | None:
        """T / D: draft tokens per draft."""
        return _ratio(self.counters.spec.num_draft_tokens or None, self.counters.spec.num_drafts)

    @property
    def wasted_per_token(self) -> float | None:
        """(T - A) / G: rejected draft tokens per output token."""
        wasted = self.counters.spec.num_draft_tokens - self.counters.spec.num_accepted_tokens
        return None if wasted < 0 else _ratio(wasted, self.output_tokens)

    @property
    def rate_per_pos(self) -> tuple[float, ...]:
        """Share of all drafts accepted up to each draft position; empty without drafts."""
        return self.counters.spec.rate_per_pos

    @property
    def conditional_rate_per_pos(self) -> tuple[float | None, ...]:
        """Share accepted at each draft position, of the drafts accepted up to the position before."""
        stats = self.counters.spec
        reached = (stats.num_drafts, *stats.accepted_per_pos)
        return tuple(_ratio(here, before) for here, before in zip(stats.accepted_per_pos, reached, strict=False))

    @property
    def seconds_per_token(self) -> float | None:
        """Decode time of finished requests / (their output tokens - requests): seconds between tokens of a stream."""
        tokens, requests = self.sums.finished_tokens, self.sums.finished
        return None if tokens is None or requests is None else _ratio(self.sums.decode_s, tokens - requests)

    @property
    def step_s(self) -> float | None:
        """Seconds per token x tokens per decoding step: seconds per step, to compare with a curve at `batch`."""
        seconds, tokens = self.seconds_per_token, self.tokens_per_decode_step or self.tokens_per_step
        return None if seconds is None or tokens is None else seconds * tokens

    @property
    def batch(self) -> float | None:
        """Mean running requests per engine, which set the cost of a step."""
        return _ratio(self.load.running, self.engines)

    @property
    def burst(self) -> float | None:
        """Mean requests of a step if far fewer run over time, so that no load stands for the window; else None."""
        shared = _ratio(self.sequence_steps, self.sums.engine_steps)
        return shared if shared and self.batch and shared > _BURST * self.batch else None

    @property
    def output_tokens_per_s(self) -> float | None:
        """G / duration: output tokens per second of all engines together."""
        return _ratio(self.output_tokens, self.duration_s)

    @property
    def engine_steps_per_s(self) -> float | None:
        """Forward passes per second of all engines together."""
        return _ratio(self.sums.engine_steps, self.duration_s)

    @property
    def preemptions_per_s(self) -> float | None:
        """Preemptions per second of all engines together."""
        return _ratio(self.sums.preemptions, self.duration_s)

    @property
    def finished_per_s(self) -> float | None:
        """Requests that ended per second, of all engines together."""
        return _ratio(self.sums.finished, self.duration_s)

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache, of those looked up."""
        return self.counters.prefix_hit_rate

    @property
    def prefill_s_per_token(self) -> float | None:
        """Prefill time / (prompt tokens x (1 - prefix hit rate)): seconds per computed prompt token."""
        tokens, hits = self.sums.prompt_tokens, self.prefix_hit_rate
        return None if tokens is None or hits is None else _ratio(self.sums.prefill_s, tokens * (1 - hits))

    @property
    def decode_share(self) -> float | None:
        """Decode time / (queue + prefill + decode time): the share of a request that speculation can shorten."""
        parts = (self.sums.queue_s, self.sums.prefill_s, self.sums.decode_s)
        known = [part for part in parts if part is not None]
        return _ratio(self.sums.decode_s, sum(known)) if len(known) == len(parts) else None

    def share_slower(self, edge_s: float) -> float | None:
        """Return the share of finished requests with a mean time per output token beyond an edge, in seconds."""
        edges = dict(self.slower_than)
        return _ratio(edges.get(edge_s), edges.get(0.0))

    def bound_quantile(self, share: float) -> tuple[float, float] | None:
        """Return the edges in seconds that enclose a quantile of the requests' mean time per output token.

        The upper one is infinite beyond the last edge; None without a histogram.
        """
        if not self.slower_than or not self.slower_than[0][1]:
            return None
        beyond = (1 - share) * self.slower_than[0][1]
        low = max((edge for edge, count in self.slower_than if count > beyond), default=0.0)
        return low, min((edge for edge, count in self.slower_than if count <= beyond), default=inf)

    @property
    def mean_queue_s(self) -> float | None:
        """Mean seconds in the queue per request."""
        return _ratio(self.sums.queue_s, self.sums.finished)

    @property
    def mean_first_token_s(self) -> float | None:
        """Mean seconds to the first token per request."""
        return _ratio(self.sums.first_token_s, self.sums.first_tokens)

    @property
    def mean_prompt_tokens(self) -> float | None:
        """Mean prompt tokens per finished request."""
        return _ratio(self.sums.prompt_tokens, self.sums.finished)

    @property
    def mean_output_tokens(self) -> float | None:
        """Mean output tokens per finished request."""
        return _ratio(self.sums.finished_tokens, self.sums.finished)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient where it is known and means something."""
    return None if numerator is None or not denominator or denominator < 0 else numerator / denominator


def _agree(values: Iterable[str | None]) -> str | None:
    """Return the value on which all agree."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _add_edges(
    a: tuple[tuple[float, float], ...], b: tuple[tuple[float, float], ...]
) -> tuple[tuple[float, float], ...]:
    """Return two histograms together, by the edges that both have."""
    known = dict(b)
    return tuple((edge, count + known[edge]) for edge, count in a if edge in known)


def _either(a: bool | None, b: bool | None) -> bool | None:
    """Return whether one of two holds. What is not known does not hold, unless neither is known."""
    return None if a is None and b is None else bool(a or b)


def _blend(a: ServerLoad, b: ServerLoad, share: float) -> ServerLoad:
    """Return the mean of two loads, of which the second held for a share of the time."""

    def each(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x * (1 - share) + y * share

    return ServerLoad(
        running=each(a.running, b.running),
        waiting=each(a.waiting, b.waiting),
        kv_usage=each(a.kv_usage, b.kv_usage),
        reported_length=b.reported_length,
        lengths=blend_lengths(a.lengths, b.lengths, share),
    )


def blend_lengths(a: Mapping[str, float], b: Mapping[str, float], share: float) -> Mapping[str, float]:
    """Return the mean of gauges by rank, of which the second held for a share of the time where both are known."""
    return {
        rank: a.get(rank, b.get(rank, 0.0)) * (1 - share) + b.get(rank, a.get(rank, 0.0)) * share for rank in (*a, *b)
    }


def _pool_load(a: ServerLoad, b: ServerLoad) -> ServerLoad:
    def each(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x + y

    fullest = [usage for usage in (a.kv_usage, b.kv_usage) if usage is not None]
    return ServerLoad(
        running=each(a.running, b.running), waiting=each(a.waiting, b.waiting), kv_usage=max(fullest, default=None)
    )
