"""Holds one candidate's measurements compared with the baseline, their worth, and the reason for the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from draftwise.core.counters import Counters
from draftwise.core.finding import Finding
from draftwise.core.load import ClosedLoop, Condition


class ReasonCode(StrEnum):
    """Reasons for verdicts: stable names, for scripts."""

    FEW_PROMPTS = "few-prompts"
    """Too few prompts for any verdict: `count` of `fewest`."""
    DISTURBED = "disturbed"
    """Too many pairs of turns were disturbed: `count` of `of`, the first by `why`; a share `left` must stay."""
    LOST_BY_PACE = "lost-by-pace"
    """The `verdict` does not hold with `count` requests that only their pace set aside, the first for `prompt`. `why`:
    what disturbed the first lost pair."""
    UNSETTLED = "unsettled"
    """A finding makes the numbers wrong either way: its `message` and `code`."""
    SLOW_SERVER = "slow-server"
    """The losing `arm` is slow where drafting plays no part: `step` and `first` times as long, seen for `seen_s` of the
    `wanted_s` seconds needed, or its gain is no more than that of the first token (`alike`)."""
    PACE_CHANGED = "pace-changed"
    """A decoding step of `arm`, and not of the other arm, took `ratio` times as long after a `share` of the paired
    blocks (None: at the end of a drift), or in `spells`; `relative`: compared with the other arm's."""
    ANCHORS_MOVED = "anchors-moved"
    """Prompts that were sent again gained `ratio` times as much."""
    UNSEEN = "unseen"
    """A kind of prompt with up to a `share` of the traffic may not be drawn, so the interval must clear `bar`."""
    NO_GAIN = "no-gain"
    """No gain beyond `margin` is possible (0.5 %, one-sided): `ratio`; `slower`: its interval excludes even 1."""
    BEHIND = "behind"
    """`better` is `ratio` times as fast, prompt by prompt, over `count` of them."""
    MEASURES_DISAGREE = "measures-disagree"
    """Deciding measures disagree: those in `better` against those in `worse`."""
    MAY_BE_CHANCE = "may-be-chance"
    """Not significant among all comparisons of the run: `p`."""
    NOT_TRUSTED = "not-trusted"
    """The finding `code` blocks the result: `gains` or not, in requests within the SLO (`promise`) or in speed."""
    GAIN = "gain"
    """The whole interval lies above no change (`promise`) or 1 + `margin`."""
    LOSS = "loss"
    """The whole interval lies below no change (`promise`), or 1 - `margin`."""
    GAIN_WITH_DAMAGE = "gain-with-damage"
    """A gain overall (`promise`: in requests within the SLO), with the damage in `detail`."""
    MIXED_WORKLOAD = "mixed-workload"
    """Half of the requests are faster (`half`: ratio of P50 of the time per token), but a `share` is slower than 1.1
    times the baseline's P90."""
    SLOW_TAIL = "slow-tail"
    """A `share` of the requests is slower than 1.1 times the baseline's P90 of the time per token."""
    LATE_FIRST_TOKEN = "late-first-token"
    """The first token takes `ratio` times as long."""
    LATE_FIRST_TOKENS_TAIL = "late-first-tokens-tail"
    """P99 of the time to the first token is `ratio` times the baseline's."""
    ANSWERS_NOT_FASTER = "answers-not-faster"
    """The server's throughput rises, but the time per token of a request does not fall; or it falls (`slower`), and
    requests take no longer."""
    LONG_ANSWERS = "long-answers"
    """The typical request gains or loses, but over all of them together tokens per second are `ratio` times as many."""
    EQUAL = "equal"
    """Equal within `margin`."""
    OPEN = "open"
    """The interval does not clear 1 + `margin`. `detectable`: smallest gain that would have been found, if known. To
    settle it, `prompts` more or `repetitions` instead of `done`; `can_repeat`: further repetitions count. `left`: who
    was ahead when it left the race for lack of time, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The reason for a comparison's verdict."""

    code: ReasonCode
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values for the names in the code's description."""
    losers: str = ""
    """Which prompts lose, in words; empty if nothing sets them apart."""
    detail: Reason | None = None
    num_prompts: int | None = None
    """Prompts behind it; None if the numbers are in doubt."""


ALL = "all"
"""Name of the row that pools all workloads: the effect of one setting for all traffic."""
_UNKNOWN = 100.0
"""Ratio from which the upper end of an interval, and by whose inverse the lower one, is no knowledge: too few readings
for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether the readings bound both ends."""
        return self.low > 1 / _UNKNOWN and self.high < _UNKNOWN

    @property
    def span(self) -> str:
        """Both ends, e.g. `1.81-2.03`, `1.20 or more`; `interval not known` if the readings bound neither."""
        if self.is_bounded:
            return f"{self.low:.2f}-{self.high:.2f}"
        if self.low > 1 / _UNKNOWN:
            return f"{self.low:.2f} or more"
        return f"{self.high:.2f} or less" if self.high < _UNKNOWN else "interval not known"


class Verdict(StrEnum):
    """The result of comparing one candidate on one workload under one condition."""

    ADOPT = "adopt"
    REJECT = "reject"
    MIXED = "mixed"
    """Better on the whole, worse for the slowest requests or for the first token: P50 better, P99 worse."""
    NO_GAIN = "no-gain"
    """Slower, equal, or faster by less than the margin: no gain worth a change is left."""
    NOT_BEST = "not-best"
    """Another candidate is faster on the same prompts; whether this one gains stays open."""
    INCONCLUSIVE = "inconclusive"
    BLOCKED = "blocked"
    """Faster, but a validity check found that the gain is not what it seems."""

    @property
    def stays_plain(self) -> bool:
        """Whether the baseline is as good or better."""
        return self in (Verdict.REJECT, Verdict.NO_GAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedHarm:
    """What is known about a harm that a gain may hide."""

    of: str
    """`first token`: it comes far later; `tail`: more requests are slow than before."""
    answer: str
    """`harm`, `excluded`, or `no power`: too little data for either, so it decides nothing."""
    value: float
    """`first token`: ratio of times to it; `tail`: share of requests slower than 1.1 times the baseline's P90."""
    count: int
    """Prompts or requests behind it."""
    needed: int
    """How many would settle it; 0 if the answer is known."""


class DecidingMeasure(StrEnum):
    """Which ratio decides; `draftwise.deciding.verdict` says why."""

    REQUEST = "tokens per second of a request"
    SERVER = "tokens per second of the server"
    ARRIVING_REQUEST = "tokens per second of a request, waiting included"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One candidate against the baseline on one workload under one condition; ratios are candidate over baseline."""

    workload: str
    candidate: str
    condition: Condition = field(default_factory=Condition)
    num_prompts: int
    population: int = 0
    """Prompts in the log that they were drawn from; 0 if unknown."""
    repetitions: tuple[int, ...]
    """The repetitions of the workload behind the numbers."""
    speedup: Interval
    """Output tokens per second of a request: geometric mean over prompts of the ratio in a typical repetition, formed
    within each paired block (`draftwise.statistics.prompt_ratio`)."""
    total: Interval
    """All output tokens over all request seconds: what an operator pays for the whole workload."""
    ttft: Interval | None
    """Time to first token (below 1 is better)."""
    tpot: Interval | None
    """Time per output token after the first (below 1 is better)."""
    share_slower: float
    """Share of the prompts that are slower by more than the margin."""
    counters: Counters
    equal_outputs: tuple[int, int] | None
    """Prompts with exactly the baseline's output tokens, and prompts in all; None above temperature 0."""
    warm_speedup: float | None
    """Speed-up of the later repetitions alone, if the server drafts better for prompts that it has answered before."""
    verdict: Verdict
    reason: Reason | None
    """None until the comparison is judged."""
    findings: tuple[Finding, ...] = ()
    settled: bool = False
    """Whether more prompts would not change the verdict, by the sequential rule of `draftwise.statistics`."""
    throughput: Interval | None = None
    """Output tokens per second of the whole server under full load; None with one request in flight."""
    guards: tuple[GuardedHarm, ...] = ()
    """Empty if the operator promised latencies, which are judged instead."""
    percentiles: Mapping[str, Mapping[int, Interval]] = field(default_factory=dict)
    """Ratios of percentiles over requests, by `ttft`, `tpot`, `itl` or `e2e`, then by percentile (50, 90, 95, 99). P90
    needs 29 requests, P95 59 and P99 299."""
    goodput: tuple[float, float] | None = None
    """Share of the requests within the SLO, baseline and candidate; None without an SLO."""
    goodput_change: Interval | None = None
    """Candidate minus baseline, as a share of the requests (a difference, not a ratio)."""
    p_value: float | None = None
    """Two-sided p-value of no difference, corrected for interim looks; None if unknown."""
    adjusted_p: float | None = None
    """Twice the one-sided p-value of a gain of at most the margin, or of no loss; corrected for interim looks and for
    the number of comparisons in the run (Holm)."""
    detectable: float | None = None
    """Smallest speed-up (a ratio above 1) that this many readings would have found with 80 % power."""
    log_itself: Interval | None = None
    """Interval of the same ratio for the log's own prompts, if at least half of them were sent; the verdict is for
    traffic like the log. None if unknown."""
    prompts_needed: int | None = None
    """Prompts that would settle an inconclusive comparison with 80 % power, given the observed spread."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition.label, self.candidate

    @property
    def decided_by(self) -> DecidingMeasure:
        """The measure that decides under this load."""
        if self.condition.concurrency == 1:
            return DecidingMeasure.REQUEST
        if isinstance(self.condition.load, ClosedLoop) and self.throughput is not None:
            return DecidingMeasure.SERVER
        return DecidingMeasure.ARRIVING_REQUEST

    @property
    def deciding(self) -> Interval:
        """The ratio of that measure; above 1 is better."""
        if self.decided_by is DecidingMeasure.SERVER and self.throughput is not None:
            return self.throughput
        return self.speedup

    @property
    def conversion(self) -> float | None:
        """Realized speed-up over mean acceptance length; 1 means that drafting and verifying cost nothing."""
        length = self.counters.spec.acceptance_length
        return self.speedup.value / length if length else None
