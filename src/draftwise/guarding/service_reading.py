"""Reads a service for a guard: windows per replica, probes, and steps requested by diagnoses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, sqrt

from draftwise.backends.backend import ServerProbe
from draftwise.core import Baseline, Diagnosis, Finding, Window
from draftwise.core.action import Step
from draftwise.knowledge.messages import refusal
from draftwise.watching.diagnose.pool_case import count_drafted, differ_in_prompts, is_same_load
from draftwise.watching.fingerprint import compare_probe, take_answers
from draftwise.watching.yardstick import Yardstick

_SPREAD_OF_REQUESTS = 0.38
"""Coefficient of variation of a request's tokens per step: 12 % for a window of ten (simulated services)."""
_SPREAD_OF_STEPS = 0.6
"""The same for one step of a request, which emits 1 to k + 1 tokens."""
_Z = 2.0
"""Number of standard errors between a mean and a value: 2 % of cases by chance."""
_MIN_DRAFTS = 200
"""Minimum number of drafts with which zero acceptance is not chance."""


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """The part of a window that decisions use."""

    start_s: float
    end_s: float
    tokens: int
    accepted: int
    drafts: int
    finished: float
    """Requests that ended."""
    running: float
    """Mean number of running requests."""
    need: float = 1.0
    """Its own break-even, as a multiple of the run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSample:
    """Pooled samples of one replica."""

    span_s: float
    num_windows: int
    tokens_per_step: float
    error: float
    """Two standard errors of `tokens_per_step`, as a share."""
    requests: float
    accepts_nothing: bool
    need: float = 1.0
    """Its own break-even, as a multiple of the run's."""

    def is_below(self, value: float) -> bool:
        """Return whether tokens per step are below a limit of the run beyond their noise."""
        return self.tokens_per_step * (1 + self.error) < value * self.need

    def is_above(self, value: float) -> bool:
        """Return whether tokens per step are above a limit of the run beyond their noise."""
        return self.tokens_per_step * (1 - self.error) > value * self.need

    def reaches(self, value: float) -> bool:
        """Return whether tokens per step are not below a limit of the run."""
        return self.tokens_per_step >= value * self.need


def read_sample(window: Window, need: float = 1.0) -> ReplicaSample | None:
    """Return the sample of a window; None if it says nothing about speculation: idle, restarted, without counters."""
    tokens, steps = window.output_tokens, window.sequence_steps
    if window.restarted or window.counts_drafts is False or not tokens or not steps:
        return None
    return ReplicaSample(
        start_s=window.start_s,
        end_s=window.start_s + window.duration_s,
        tokens=tokens,
        accepted=window.counters.spec.num_accepted_tokens,
        drafts=window.counters.spec.num_drafts,
        finished=window.sums.finished or 0.0,
        running=window.load.running or 0.0,
        need=need,
    )


def keep_recent(samples: Sequence[ReplicaSample], now_s: float, span_s: float) -> tuple[ReplicaSample, ...]:
    """Return the samples of the last `span_s` seconds; those of later were taken before the clock was set back."""
    return tuple(each for each in samples if now_s - span_s <= each.start_s <= now_s)


def pool(samples: Sequence[ReplicaSample]) -> PooledSample | None:
    """Pool samples; None without any.

    A request that spans several windows counts once. If the number is unknown, it counts as one request.
    """
    if not samples:
        return None
    tokens, accepted = sum(each.tokens for each in samples), sum(each.accepted for each in samples)
    drafts = sum(each.drafts for each in samples)
    requests = sum(each.finished for each in samples) + max(each.running for each in samples)
    return PooledSample(
        span_s=samples[-1].end_s - samples[0].start_s,
        num_windows=len(samples),
        tokens_per_step=tokens / (tokens - accepted),
        error=_Z * sqrt(_SPREAD_OF_REQUESTS**2 / max(requests, 1.0) + _SPREAD_OF_STEPS**2 / (tokens - accepted)),
        requests=requests,
        accepts_nothing=drafts >= _MIN_DRAFTS and accepted == 0,
        need=sum(each.need * each.tokens for each in samples) / tokens,
    )


def find_k(window: Window) -> int:
    """Return the k of a server, which positions tell however few drafts it made; 0 if it is unknown."""
    return count_drafted(window) or len(window.counters.spec.accepted_per_pos)


_HOUR_S = 3600.0
MIN_WINDOWS = 3
"""Minimum number of windows to judge a replica as low or as paying again."""
_HEALTHY = 1.05
"""Factor on the break-even from which a replica pays again: at break-even itself it would come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits from the operator and the run."""

    break_even: float
    """Tokens per step below which every measured cell loses."""
    k: int = 0
    """Draft tokens of the run; 0 if unknown."""
    pays: float
    """Tokens per step above which a replica that was taken out pays again."""
    hold_s: float = 30.0
    """Seconds for which a replica must stay below break-even."""
    stale_s: float = 10.0
    """Seconds after which a window is outdated."""
    roll_back_after_s: float = _HOUR_S
    min_spec: int = 0
    """Number of speculating replicas that always stay in the traffic."""
    step_gap_s: float = _HOUR_S
    can: frozenset[Step] = frozenset()
    """Steps that an executor can carry out."""
    trickles: bool = False
    """Whether a replica that is out may get a twentieth of the traffic as a trial."""
    unknown_because: str = ""
    """Why there is no break-even, as a clause."""

    @classmethod
    def of(cls, break_evens: Sequence[float], *, every_s: float, min_spec: int, trickles: bool, k: int = 0) -> Rules:
        """Return the rules for a run's break-evens and the interval between looks.

        The traffic may be like any cell, so a replica is low below all break-evens and pays above all. Without
        break-evens, no replica is ever low, and none is put back.
        """
        return cls(
            break_even=min(break_evens, default=0.0),
            k=k,
            pays=_HEALTHY * max(break_evens, default=inf),
            hold_s=max(30.0, MIN_WINDOWS * every_s),
            stale_s=2 * every_s + 5,
            min_spec=min_spec,
            trickles=trickles,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What a probe of one replica found."""

    at_s: float
    tokens_per_step: float
    is_same: bool | None
    """Whether it drafts as at the known good time; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """A step requested by a diagnosis."""

    step: Step
    replicas: tuple[str, ...] = ()
    cause: str
    """Code of the diagnosis."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReading:
    """The observed state of a service at one time."""

    at_s: float
    """Seconds since the epoch."""
    spec: Mapping[str, Window | None]
    """Window that ends now, by URL; None if the replica does not answer."""
    plain: Mapping[str, Window | None]
    stands: frozenset[str] = frozenset()
    """Replicas of which an engine has requests in flight and makes no progress."""
    probes: Mapping[str, ProbeReading] = field(default_factory=dict)
    """Latest probe, by URL."""
    requests: tuple[StepRequest, ...] = ()

    def find_need(self, window: Window, rules: Rules) -> float | None:
        """Return a window's own break-even, as a multiple of the run's; None if it is unknown.

        With another k, a step costs something else. Then it pays off from as many tokens on as plain steps fit into it.
        """
        if not rules.break_even or 0 < find_k(window) == rules.k:
            return 1.0
        plain = Window.pooled(filter(None, self.plain.values()))
        if plain is None or not window.step_s or not plain.step_s or self.why_not_compared(window):
            return None
        return window.step_s / plain.step_s / rules.break_even

    def why_not_compared(self, window: Window) -> str:
        """Return why a window is not held against the plain pool, as a clause; empty if it is."""
        plain = Window.pooled(filter(None, self.plain.values()))
        if not window.output_tokens:
            return "it has no traffic"
        if plain is not None and plain.output_tokens and differ_in_prompts(window, plain):
            return "its prompts differ in length from those of the plain pool"
        if plain is None or not is_same_load(window, plain):
            return "no plain pool (--plain) has a similar load"
        return "" if window.step_s and plain.step_s else "the step times are unknown"


_STEPS: Mapping[str, Step] = {
    "acceptance-fell": Step.PROBE,
    "tail-fell": Step.PROBE,
    "above-crossover": Step.LOWER_K,
    "tail-dead": Step.LOWER_K,
    "drafter-changed": Step.RESTART,
    "fades-with-uptime": Step.RESTART,
    "replica-outlier": Step.RESTART,
    "traffic-changed": Step.RETRAIN,
}


def find_requests(findings: Iterable[Finding], replicas: Collection[str]) -> Iterator[StepRequest]:
    """Yield the steps requested by diagnoses that are not consequences of others.

    Args:
        findings: findings, including diagnoses.
        replicas: URLs. A diagnosis of anything else concerns the whole service; a restart always concerns one replica.
    """
    for finding in findings:
        step = _STEPS.get(finding.code)
        if not isinstance(finding, Diagnosis) or finding.follows_from or step is None:
            continue
        named = (finding.where,) if finding.where in replicas else ()
        if named or step is not Step.RESTART:
            yield StepRequest(step=step, replicas=named, cause=finding.code, reason=finding.message)


def refuse_unless_comparable(baseline: Baseline | None) -> Baseline:
    """Return the baseline if a probe can be compared with it.

    Raises:
        InvalidSetup: it has no probe, or no expectation of the traffic.
    """
    if baseline is None or not baseline.probe or baseline.expected is None:
        raise refusal("probe-without-baseline")
    return baseline


def read_probe(probed: ServerProbe, baseline: Baseline, *, at_s: float) -> ProbeReading | None:
    """Return a probe's reading of a replica; None if its steps cannot be counted or too few prompts are comparable.

    The probe's prompts differ from the traffic, so only the change carries over: the traffic's tokens per step are
    assumed to change by the same factor as the probe's, relative to the baseline.
    """
    answers = take_answers(probed)
    expected = Yardstick(baseline=baseline).tokens_per_step
    found = compare_probe(answers, baseline.probe, baseline.probe_null) if answers else None
    if found is None or found.change is None or found.differs is None or expected is None:
        return None
    return ProbeReading(at_s=at_s, tokens_per_step=expected * exp(found.change), is_same=not found.differs)
