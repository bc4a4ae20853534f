"""What a server's counters and gauges say over a stretch of time: whose requests, drafts, and prefix-cache hits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any

from draftwise.core import Condition, Counters, Finding, Interval, ServerLoad, Severity, SpecConfig, TurnRecord
from draftwise.decide.thresholds import Thresholds

__all__ = [
    "ON_PURPOSE",
    "UNPROVEN",
    "DraftingEvidence",
    "LoadCounters",
    "check_counters",
    "check_server",
]

UNPROVEN = "speculation-unproven"
"""Code of the finding that no counter proves a candidate's speculation."""
_BLOCK = 16
"""Tokens of the smallest block that engines cache by default."""
_NAME_COUNTERS = "Name the page of its counters: --metrics-url ARM=http://HOST:PORT/metrics."
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
        yield Finding.warning("other-requests", f"{text}.", fix="Measure on servers that nothing else talks to.")


def _draft_lengths(arm: str, asked: SpecConfig, windows: Iterable[Counters]) -> Iterator[Finding]:
    """Yield drafts that are always the same smaller number: that is another k than was asked for.

    Methods that look up text draft less than k at times.
    """
    lengths = {round(each.spec.num_draft_tokens / each.spec.num_drafts, 2) for each in windows if each.spec.num_drafts}
    k = asked.num_speculative_tokens
    if k is not None and len(lengths) == 1 and (length := lengths.pop()) < k and length == int(length):
        text = f"every draft has {length:.0f} tokens, asked for were {k}."
        yield Finding.warning("drafts-shorter", text, where=arm, fix="Name it by the k that it drafts.")


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
        yield Finding.info("drafting-falls-with-load", f"{text}: {given[0]} asks for that.", where=arm)
    else:
        fix = "The token budget of a step (max_num_batched_tokens) must hold k + 1 tokens for every sequence."
        yield Finding.warning("drafting-falls-with-load", f"{text}, and nothing asks for that.", where=arm, fix=fix)


def _find_ends(sweep: Sequence[LoadCounters]) -> Iterator[tuple[float, LoadCounters, float, LoadCounters]]:
    """Yield the smallest load and the one with the least drafting, each behind its draft tokens per step."""
    found = [(per_step, each) for each in sweep if (per_step := each.drafted_per_step) is not None]
    known = sorted(found, key=lambda each: each[1].load)
    if len(known) > 1:
        yield (*known[0], *min(known[1:], key=lambda each: each[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingEvidence:
    """What shows whether the servers of a comparison drafted."""

    baseline: Counters
    candidate: Counters
    elsewhere: Counters
    """The candidate's, under all loads together."""
    resolved: Mapping[str, Any] | None
    """The candidate's speculative config as its server says it took it; None where it does not say."""
    num_requests: tuple[int, int] = (0, 0)
    """That the baseline and the candidate answered."""
    is_counted: bool = True
    """Whether the candidate's /metrics would show its drafts: it could be read, and its engine counts them."""
    text_per_event: float | None = None
    """Text in an event of the candidate's stream over that in one of the baseline's; None without any. An engine sends
    what a decoding step brought as one event, so that the events of a server that drafts hold more."""
    outputs_compared: bool = True
    """Whether outputs of both servers at temperature 0 were compared: they tell another model."""

    @property
    def is_swapped(self) -> bool:
        """Whether the baseline drafted and the candidate answered without a single draft."""
        silent = self.candidate.generation_tokens and not self.elsewhere.spec.num_drafts
        return bool(self.baseline.spec.num_drafts and self.is_counted and silent)

    @property
    def tokens_per_step(self) -> float | None:
        """Of the candidate, as counted, or as its stream shows where nothing counts; None without a draft."""
        if self.is_counted:
            return self.candidate.tokens_per_step if self.candidate.spec.num_drafts else None
        return self.text_per_event


def check_counters(
    evidence: DraftingEvidence,
    speedup: Interval,
    ttft: Interval | None,
    condition: Condition,
    thresholds: Thresholds,
) -> list[Finding]:
    """Return what speaks against speculation, and nothing else, having made the difference between two servers.

    Args:
        speedup: ratio of the tokens per second.
        ttft: ratio of the times to the first token.
    """
    alone = condition.concurrency == 1
    return [
        *_speculation(evidence, speedup, condition, thresholds),
        *_prefix_cache(evidence, ttft, thresholds, alone=alone),
    ]


def _speculation(
    evidence: DraftingEvidence, speedup: Interval, condition: Condition, thresholds: Thresholds
) -> Iterator[Finding]:
    """Whether drafts made the difference."""
    faster = speedup.low > 1 + thresholds.margin
    if evidence.is_swapped:
        text = "the baseline's server speculates and the candidate's does not: the URLs are swapped."
        yield Finding.error("swapped-servers", text, fix="Swap --url and --candidate-url.")
        return
    if not evidence.is_counted:
        yield _judge_stream(evidence, thresholds)
    elif not evidence.candidate.spec.num_drafts:
        yield _find_no_drafts(evidence, condition, faster=faster)
    if drafted := evidence.baseline.spec.num_draft_tokens:
        yield Finding.error("plain-speculates", f"the baseline's server drafted {drafted} tokens.")
    most = evidence.tokens_per_step
    # With arrivals that do not wait, a server just below its limit can be any number of times slower.
    closed = condition.concurrency is not None
    if closed and most and speedup.low > 1 and speedup.value > most * (1 + thresholds.margin):
        text = f"{speedup.value:.2f}x ({speedup.span}) is more than its {most:.2f} tokens per step can give"
        why = "Something else differs between the servers, or the machine is busy."
        if speedup.low > most:
            yield Finding.error("unexplained-speedup", f"{text}.", fix=why)
        else:
            text = f"{text}, which may be chance: too few prompts to tell."
            yield Finding.warning("unexplained-speedup", text, fix=f"{why} More prompts would tell.")


def _judge_stream(evidence: DraftingEvidence, thresholds: Thresholds) -> Finding:
    """Judge a candidate whose counters cannot be read: another model and exchanged URLs must not pass."""
    text, seen = "there is no proof that it speculated: its counters cannot be read", evidence.text_per_event
    if evidence.resolved is not None and not evidence.resolved:
        return Finding.error("not-speculating", f"{text}, and the server says that its speculative config is empty.")
    if seen is None or seen <= 1 + thresholds.margin:
        why = "and an event of its stream holds no more text than one of the baseline's"
        return Finding.error("not-speculating", f"{text}, {why}.", fix=_NAME_COUNTERS)
    if not evidence.outputs_compared:
        why = "and without outputs at temperature 0 nothing shows that it serves the baseline's model"
        return Finding.error("not-speculating", f"{text}, {why}.", fix=f"Measure temperature 0, too. {_NAME_COUNTERS}")
    why = f"an event of its stream holds {seen:.2f}x the text of one of the baseline's, as with speculation"
    return Finding.warning(UNPROVEN, f"{text}; {why}.", fix=_NAME_COUNTERS)


def _find_no_drafts(evidence: DraftingEvidence, condition: Condition, *, faster: bool) -> Finding:
    """Tell a server that never speculates from one that stops under this load."""
    candidate, elsewhere, resolved = evidence.candidate, evidence.elsewhere, evidence.resolved
    if elsewhere.spec.num_drafts and candidate.generation_tokens:
        text = f"it drafted nothing at {condition.label}, and {elsewhere.spec.num_drafts} times under other loads."
        return Finding(
            code="not-speculating-under-load",
            severity=Severity.ERROR if faster else Severity.INFO,
            message=text,
            fix="A schedule by batch size can ask for that; see the findings.",
        )
    if not candidate.generation_tokens:
        text = "there is no proof that it speculated: its counters stood still while it answered"
        return Finding.error("not-speculating", f"{text}, so they are another server's.", fix=_NAME_COUNTERS)
    text = f"there is no proof that it speculated: /metrics counted no draft in {candidate.generation_tokens} tokens"
    if resolved is not None:
        text += f" and the server says that its speculative config is {resolved or 'empty'}"
    return Finding.error("not-speculating", f"{text}.")


def _prefix_cache(
    evidence: DraftingEvidence, ttft: Interval | None, thresholds: Thresholds, *, alone: bool
) -> Iterator[Finding]:
    """What prefix caches and first tokens lost or gained beside the baseline."""
    before, after = evidence.baseline.prefix_hit_rate, evidence.candidate.prefix_hit_rate
    lost = 0.0 if before is None or after is None else before - after
    rates = ""
    if before is not None and after is not None:
        rates = f"served {after:.0%} of the prompt tokens, the baseline's {before:.0%}"
    if lost > thresholds.prefix_hit_loss:
        # Heads that read hidden states compute the last cached block again: that is theirs, and in the times measured.
        tokens = _hits_per_request(evidence)
        severity = Severity.ERROR if tokens is None or tokens > _BLOCK else Severity.WARNING
        fix = "A drafter's weights and KV leave fewer blocks for the cache, and some methods drop its last block."
        less = "" if tokens is None else f": {tokens:.0f} tokens of a request less"
        text = f"the prefix cache {rates}{less}."
        yield Finding(code="prefix-hits-lost", severity=severity, message=text, fix=fix)
    if -lost > thresholds.prefix_hit_loss:
        fix = "Speculation cannot find more: its server has seen these prompts before. Restart both servers."
        yield Finding.error(
            "prefix-hits-gained", f"the prefix cache {rates}: the prompts were warm on one side.", fix=fix
        )
    if ttft is not None and ttft.value >= 1 + thresholds.ttft_loss:
        yield _judge_first_token(ttft, _why_late(alone=alone, lost_hits=lost > thresholds.prefix_hit_loss))


def _hits_per_request(evidence: DraftingEvidence) -> float | None:
    """Return how many more tokens of a request the baseline found in its cache."""
    if not all(evidence.num_requests):
        return None
    before, after = evidence.baseline.prefix_hits or 0, evidence.candidate.prefix_hits or 0
    return before / evidence.num_requests[0] - after / evidence.num_requests[1]


def _judge_first_token(ttft: Interval, why: str) -> Finding:
    """Tell first tokens that come late from those that only may: their interval holds that they do not."""
    times = f"{ttft.value:.2f}x as late as the baseline's ({ttft.span})"
    if ttft.low > 1:
        return Finding.warning("ttft-damaged", f"the first token comes {times}.", fix=why)
    text = f"the first token may come later: it came {times}, which does not exclude that nothing is lost."
    if not ttft.is_bounded:
        return Finding.info("ttft-damaged", text, fix="More prompts would tell.")
    # An interval shrinks with the square root of the number of prompts.
    more = ceil((log(ttft.high / ttft.low) / 2 / log(ttft.value)) ** 2)
    return Finding.info("ttft-damaged", text, fix=f"About {max(2, more)} times as many prompts would tell.")


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
