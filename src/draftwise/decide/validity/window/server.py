"""What a server's counters and gauges say over a stretch of time: whose requests, drafts, and prefix-cache hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Condition, Counters, Finding, Interval, ServerLoad, SpecConfig, TurnRecord
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, info, warning

__all__ = ["ON_PURPOSE", "LoadCounters", "check_counters", "check_server", "serves_more_hits"]
ON_PURPOSE = ("num_speculative_tokens_per_batch_size", "enable_adaptive_verification")
"""Options with which an engine drafts less under load because it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCounters:
    """What a server's counters grew by under one load."""

    label: str
    load: float
    counters: Counters

    @property
    def drafted_per_step(self) -> float | None:
        """Draft tokens per decoding step of a sequence."""
        steps = (self.counters.generation_tokens or 0) - self.counters.spec.num_accepted_tokens
        return self.counters.spec.num_draft_tokens / steps if steps > 0 else None


def check_server(
    arm: str,
    asked: SpecConfig | None,
    windows: Sequence[TurnRecord],
    sweeps: Iterable[Sequence[LoadCounters]],
    thresholds: Thresholds,
) -> list[Finding]:
    """Return whether a server had requests of others, and where it drafts less than it was asked to.

    Args:
        asked: its speculative config, None for none.
        windows: stretches of time with its gauges just before each.
        sweeps: its counters under each load of a sweep (one workload at one temperature), in any order.
    """
    found = list(_foreign_requests(arm, [each.before for each in windows], thresholds))
    if asked is not None:
        found += _draft_lengths(arm, asked, [each.counters for each in windows])
        found += _drafting_under_load(arm, asked, sweeps, thresholds)
    return found


def _foreign_requests(arm: str, before: Sequence[ServerLoad], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a server that was busy before turns, when nothing of the run was on it.

    Args:
        before: its gauges before each turn.
    """
    loads = [(each.running or 0.0, each.waiting or 0.0) for each in before]
    busy = [load for load in loads if sum(load) > 0]
    if loads and len(busy) > thresholds.busy_turns * len(loads):
        running, waiting = (max(values) for values in zip(*busy, strict=True))
        text = (
            f"before {len(busy)} of {len(loads)} turns {arm} had requests already (up to {running:.0f} running, "
            f"{waiting:.0f} waiting)"
        )
        yield warning("other-requests", f"{text}.", "Measure on servers that nothing else talks to.")


def _draft_lengths(arm: str, asked: SpecConfig, windows: Iterable[Counters]) -> Iterator[Finding]:
    """Yield drafts that are always the same smaller number: that is another k than was asked for.

    Methods that look up text draft less than k at times.
    """
    lengths = {round(each.spec.num_draft_tokens / each.spec.num_drafts, 2) for each in windows if each.spec.num_drafts}
    k = asked.num_speculative_tokens
    if k is not None and len(lengths) == 1 and (length := lengths.pop()) < k and length == int(length):
        text = f"every draft has {length:.0f} tokens, asked for were {k}."
        yield warning("drafts-shorter", text, "Name it by the k that it drafts.", where=arm)


def _drafting_under_load(
    arm: str, asked: SpecConfig, sweeps: Iterable[Sequence[LoadCounters]], thresholds: Thresholds
) -> Iterator[Finding]:
    """Yield a server that drafts less per step under load: switched off by batch size, or out of token budget."""
    ends = (each for sweep in sweeps for each in _find_ends(sweep))
    falls = [(fewest / most, first, low) for most, first, fewest, low in ends if most]
    share, first, low = min(falls, key=lambda each: each[0], default=(1.0, None, None))
    if first is None or low is None or share >= thresholds.drafting_left:
        return
    text = (
        f"it drafts {low.drafted_per_step:.2f} tokens per step at {low.label}, {first.drafted_per_step:.2f} at "
        f"{first.label}"
    )
    if given := [name for name in ON_PURPOSE if name in asked.options]:
        yield info("drafting-falls-with-load", f"{text}: {given[0]} asks for that.", where=arm)
    else:
        fix = "The token budget of a step (max_num_batched_tokens) must hold k + 1 tokens for every sequence."
        yield warning("drafting-falls-with-load", f"{text}, and nothing asks for that.", fix, where=arm)


def _find_ends(sweep: Sequence[LoadCounters]) -> Iterator[tuple[float, LoadCounters, float, LoadCounters]]:
    """Yield the smallest load and the one with the least drafting, each behind its draft tokens per step."""
    found = [(per_step, each) for each in sweep if (per_step := each.drafted_per_step) is not None]
    known = sorted(found, key=lambda each: each[1].load)
    if len(known) > 1:
        yield (*known[0], *min(known[1:], key=lambda each: each[0]))


def check_counters(
    baseline: Counters,
    candidate: Counters,
    elsewhere: Counters,
    resolved: Mapping[str, Any] | None,
    speedup: Interval,
    ttft: Interval | None,
    condition: Condition,
    thresholds: Thresholds,
) -> list[Finding]:
    """Return what speaks against speculation, and nothing else, having made the difference between two servers.

    Args:
        elsewhere: the candidate's counters under all loads together.
        resolved: its speculative config as its server says it took it; None where it does not say.
        speedup: ratio of the tokens per second.
        ttft: ratio of the times to the first token.
    """
    return [
        *_speculation(baseline, candidate, elsewhere, resolved, speedup, condition, thresholds),
        *_prefix_cache(baseline, candidate, ttft, thresholds, alone=condition.concurrency == 1),
    ]


def _speculation(
    baseline: Counters,
    candidate: Counters,
    elsewhere: Counters,
    resolved: Mapping[str, Any] | None,
    speedup: Interval,
    condition: Condition,
    thresholds: Thresholds,
) -> Iterator[Finding]:
    """Whether drafts made the difference."""
    faster = speedup.low > 1 + thresholds.margin
    if baseline.spec.num_drafts and candidate.generation_tokens and not elsewhere.spec.num_drafts:
        text = f"the baseline's server speculates ({baseline.spec.num_drafts} drafts) and the candidate's does not"
        yield error("swapped-servers", f"{text}: the URLs are swapped.", "Swap --url and --candidate-url.")
        return
    if not candidate.spec.num_drafts:
        yield _find_no_drafts(candidate, elsewhere, resolved, condition, faster=faster)
    if baseline.spec.num_drafts:
        text = f"the baseline's server drafted {baseline.spec.num_draft_tokens} tokens."
        yield error("plain-speculates", text)
    most = candidate.tokens_per_step
    # With arrivals that do not wait, a server just below its limit can be any number of times slower.
    closed = condition.concurrency is not None
    limit = (most or 0.0) * (1 + thresholds.margin)
    if closed and candidate.spec.num_drafts and most and speedup.low > 1 and speedup.value > limit:
        text = f"{speedup.value:.2f}x is more than its {most:.2f} tokens per step can give."
        yield error("unexplained-speedup", text, "Something else differs between the servers, or the machine is busy.")


def _find_no_drafts(
    candidate: Counters,
    elsewhere: Counters,
    resolved: Mapping[str, Any] | None,
    condition: Condition,
    *,
    faster: bool,
) -> Finding:
    """Tell a server that never speculates from one that stops under this load."""
    if elsewhere.spec.num_drafts and candidate.generation_tokens:
        text = f"it drafted nothing at {condition.label}, and {elsewhere.spec.num_drafts} times under other loads."
        kind = error if faster else info
        return kind("not-speculating-under-load", text, "A schedule by batch size can ask for that; see the findings.")
    if not candidate.generation_tokens:
        return error("not-speculating", "there is no proof that it speculated: its /metrics has no counters.")
    text = f"there is no proof that it speculated: /metrics counted no draft in {candidate.generation_tokens} tokens"
    if resolved is not None:
        text += f" and the server says that its speculative config is {resolved or 'empty'}"
    return error("not-speculating", f"{text}.")


def _prefix_cache(
    baseline: Counters, candidate: Counters, ttft: Interval | None, thresholds: Thresholds, *, alone: bool
) -> Iterator[Finding]:
    """What prefix caches and first tokens lost or gained beside the baseline."""
    before, after = baseline.prefix_hit_rate, candidate.prefix_hit_rate
    lost = 0.0 if before is None or after is None else before - after
    rates = ""
    if before is not None and after is not None:
        rates = f"served {after:.0%} of the prompt tokens, the baseline's {before:.0%}"
    if lost > thresholds.prefix_hit_loss:
        fix = "A drafter's weights and KV leave fewer blocks for the cache, and some methods drop its last block."
        yield error("prefix-hits-lost", f"the prefix cache {rates}.", fix)
    if -lost > thresholds.prefix_hit_loss:
        fix = "Speculation cannot find more: its server has seen these prompts before. Restart both servers."
        yield error("prefix-hits-gained", f"the prefix cache {rates}: the prompts were warm on one side.", fix)
    if ttft is not None and ttft.value >= 1 + thresholds.ttft_loss:
        text = f"the first token comes {ttft.value:.2f}x as late as the baseline's ({ttft.low:.2f}-{ttft.high:.2f})"
        yield warning("ttft-damaged", f"{text}.", _why_late(alone=alone, lost_hits=lost > thresholds.prefix_hit_loss))


def _why_late(*, alone: bool, lost_hits: bool) -> str:
    if lost_hits:
        return "First cause to look at: the prefix cache above."
    if alone:
        return (
            "With one stream the usual causes are a drafter that reads the prompt as well, and a method for which the "
            "engine turns asynchronous scheduling off."
        )
    return (
        "Under load the usual cause is that each step verifies k + 1 tokens a sequence, so that a new prompt waits "
        "longer for its part of the step: try a smaller k there, or a larger max_num_batched_tokens."
    )


def serves_more_hits(before: Counters, after: Counters, thresholds: Thresholds) -> bool:
    """Return whether a prefix cache serves clearly more of the prompt tokens in a later window than in an earlier."""
    old, new = before.prefix_hit_rate, after.prefix_hit_rate
    return old is not None and new is not None and new > old + thresholds.prefix_hit_loss
