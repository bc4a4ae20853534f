"""Defines diagnosis rules and the case that they judge: a pool's windows, side information, noise and losses.

Acceptance varies between requests, not within one, so noise depends on the number of requests, not of drafts. The
figures come from simulated services whose requests vary like published profiles and the bundled prompts: acceptance
length varies by 12 % with 10 requests per window, by 5.8 % with 50 and by 3.9 % with 300.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import ceil, hypot, inf, log, sqrt
from typing import TYPE_CHECKING

from draftwise.core import ServerLoad, SpecConfig, Window
from draftwise.core.window import LONGEST
from draftwise.knowledge.findings import DiagnosisFact, all_findings
from draftwise.knowledge.methods import find_method
from draftwise.watching.yardstick import Yardstick

if TYPE_CHECKING:
    from draftwise.watching.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExpectation:
    """State of a pool at a known good time."""

    yardstick: Yardstick = field(default_factory=Yardstick)
    """Measurements of its run."""
    earlier: Window | None = None
    """A window of the same pool from a good time, such as before a roll-out. It reflects the served requests better
    than a run."""

    @property
    def window(self) -> Window | None:
        """The earlier window, else the run's counters as a window; None if neither is known."""
        expected = None if self.yardstick.baseline is None else self.yardstick.baseline.expected
        if self.earlier is not None or expected is None:
            return self.earlier
        running = expected.condition.concurrency
        load = ServerLoad(running=None if running is None else float(running))
        return Window(
            pool="", instance="", start_s=0.0, duration_s=0.0, counters=expected.counters, load=load, counts_drafts=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInfo:
    """Information in addition to the counters. None means not given, and decides nothing."""

    spec: SpecConfig | None = None
    """The servers' speculative config."""
    rulings: Mapping[str, str] | None = None
    """Messages of `draftwise check` and `inspect` about their setup, by code."""
    suspects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Known defects of the release that affect the setup, by the diagnosis that they can explain."""
    log: str | None = None
    """Text of a server's start-up log."""
    largest_graph: float | None = None
    """Tokens of the largest CUDA graph, from that log."""
    probe: Fingerprint | None = None
    """How the probe's answers differ from those in the baseline."""
    releases: tuple[str, str] | None = None
    """The engine's releases in the baseline and now, if nothing else of the setup differs."""

    @property
    def schedule(self) -> Sequence[tuple[int, int, int]]:
        """Rows (first batch size, last, k) of a k schedule; empty without one."""
        rows = None if self.spec is None else self.spec.options.get("num_speculative_tokens_per_batch_size")
        is_table = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 3 for row in rows)
        return [(first, last, k) for first, last, k in rows] if is_table and rows else []

    def find_ruling(self, codes: Iterable[str]) -> str | None:
        """Return the message of the first of these codes that `check` or `inspect` reported; None without one."""
        rulings = self.rulings or {}
        return next((rulings[code] for code in codes if code in rulings), None)

    def find_proof(self, row: DiagnosisFact) -> str | None:
        """Return the evidence for a cause from a check of the setup or its start-up log; None without any."""
        said = self.find_ruling(row.confirmed_by)
        if said is None and row.logged and self.log is not None:
            said = next((line.strip() for line in self.log.splitlines() if row.logged in line), None)
        return said

    def find_scheduled_k(self, batch: float | None) -> int | None:
        """Return the scheduled k for a batch size; None without a schedule or outside it."""
        rows = () if batch is None else self.schedule
        return next((k for first, last, k in rows if batch is not None and first <= batch <= last), None)


@dataclass(frozen=True)
class PoolCase:
    """One pool over one period."""

    windows: tuple[Window, ...]
    """Windows of the engines; at least one."""
    expected: PoolExpectation = field(default_factory=PoolExpectation)
    plain: Window | None = None
    """Pooled window of the servers without speculation, over the same period."""
    asked: SideInfo = field(default_factory=SideInfo)

    @cached_property
    def window(self) -> Window:
        """Window of all engines together."""
        pooled = Window.pooled(self.windows)
        assert pooled is not None, "a pool has at least one engine"
        return pooled

    @cached_property
    def good(self) -> Window | None:
        """Window of a good time; None if unknown."""
        return self.expected.window

    @cached_property
    def error(self) -> float:
        """Standard error of the log ratio of a reading to the good window's, due to variation between requests."""
        earlier = self.expected.earlier
        return relative_error(self.window, *([] if earlier is None else [earlier]))

    @cached_property
    def replicas(self) -> Mapping[str, Window]:
        """Window of each server, by instance."""
        names = dict.fromkeys(window.instance for window in self.windows)
        pooled = {name: Window.pooled(each for each in self.windows if each.instance == name) for name in names}
        return {name: window for name, window in pooled.items() if window is not None}

    @cached_property
    def parts(self) -> Mapping[str, Window]:
        """Windows of the replicas, or of a single replica's engines."""
        ranks = {f"{each.instance}, engine {each.engine}": each for each in self.windows}
        return self.replicas if len(self.replicas) > 1 or len(self.windows) < 2 else ranks

    @property
    def k(self) -> float | None:
        """Configured draft length, else the good window's; None if neither is known."""
        asked = None if self.asked.spec is None else self.asked.spec.num_speculative_tokens
        return asked if asked is not None else None if self.good is None else self.good.mean_k

    @cached_property
    def comparable(self) -> Window | None:
        """The plain pool's window if its requests are comparable; otherwise None."""
        return None if self.plain is None or differ_in_prompts(self.window, self.plain) else self.plain

    @cached_property
    def gains(self) -> bool:
        """Whether a token takes less time than in a plain pool with comparable requests and load."""
        mine, plain = self.window.seconds_per_token, self.comparable
        theirs = None if plain is None else plain.seconds_per_token
        if mine is None or theirs is None or plain is None or not is_same_load(self.window, plain):
            return False
        return mine < theirs / max(1.0, self.expected.yardstick.step_ratio(plain, plain=True) or 1.0)

    def find_excluded(self) -> Iterator[str]:
        """Yield causes that the given information already rules out."""
        now, earlier, asked = self.window, self.expected.earlier, self.asked
        method = find_method(self.method)
        for fact in all_findings().values():
            row = fact.diagnosis
            if row is not None and row.methods and method is not None and method.name not in row.methods:
                yield fact.code
        if asked.spec is not None and not asked.schedule:
            yield from ("schedule-zero", "schedule-ignored", "schedule-piecewise")
        if earlier is not None:
            prompts, then = now.mean_prompt_tokens, earlier.mean_prompt_tokens
            if prompts is not None and then is not None and prompts < MUCH_LONGER * then:
                yield "context-grew"
            if not now.adapters - earlier.adapters:
                yield "lora-changed"
        if now.cache_dtype in _FULL_CACHE:
            yield "kv-quantized"
        if any(window.uptime_s is not None and window.uptime_s > COLD_S for window in self.windows):
            yield "suffix-cold"

    @property
    def method(self) -> str | None:
        """Configured method; None if unknown."""
        return None if self.asked.spec is None else self.asked.spec.method

    @cached_property
    def readings(self) -> frozenset[str]:
        """Available readings, by the names of `DiagnosisFact.needs`."""
        yardstick, asked = self.expected.yardstick, self.asked
        step = yardstick.step_s(self.window.batch)
        at_hand = {
            "metrics": self.window.output_tokens is not None or self.window.counters.spec.num_draft_tokens > 0,
            "replicas": len(self.parts) > 1 or any(len(each.load.lengths) > 1 for each in self.windows),
            "uptime": all(window.uptime_s is not None for window in self.windows),
            "wakes": bool(self.window.sleeping),
            "baseline": self.good is not None,
            "earlier": self.expected.earlier is not None,
            "curve": step is not None,
            "break-even": yardstick.break_even is not None,
            "crossover": yardstick.crossover is not None,
            "plain": self.plain is not None,
            "probe": asked.probe is not None and asked.probe.differs is not None,
            "versions": asked.releases is not None,
            "config": asked.rulings is not None,
            "log": asked.log is not None,
            "method": self.method is not None,
            "k": self.k is not None,
        }
        return frozenset(name for name, known in at_hand.items() if known)

    def find_missing(self, needs: Iterable[str]) -> tuple[str, ...]:
        """Return the needs without any available alternative."""
        return find_missing(self.readings, tuple(needs))


@cache
def find_missing(readings: frozenset[str], needs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the needs of which no alternative is among the readings."""
    return tuple(need for need in needs if readings.isdisjoint(need.split(" or ")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """Result of a rule that matched."""

    message: str
    """A whole sentence."""
    evidence: tuple[str, ...] = ()
    """Observations."""
    loss: float | None = None
    """Its share of the time per token, as a log; None without a reference."""
    where: str = ""
    """The server concerned; empty for the whole pool."""
    fix: str = ""
    """What to do in this case; empty: the registry's advice."""
    excludes: frozenset[str] = frozenset()
    """Causes ruled out by the same readings."""


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """Rule for one diagnosis, based on windows and optionally a probe or a config."""

    code: str
    find: Callable[[PoolCase], RuleMatch | None]
    """Called only if every reading that the code's registry row needs is available."""
    certainty: float = 1.0
    """Certainty of the diagnosis; below 1 if it is more often a consequence of something else."""


def tell(name: str, now: float | None, then: float | None = None, *, of: str = "expected", unit: str = "") -> str:
    """Format an observation, such as `tokens per step 1.21, break-even 1.35`."""
    here = "unknown" if now is None else f"{now:.3g}{unit}"
    return f"{name} {here}" if then is None else f"{name} {here}, {of} {then:.3g}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Log parts of the ratio of seconds per token, now over expected. They add up; None if a reading is missing."""

    machine: float | None
    """Step time over the curve's value at this batch: machine, graphs, configuration."""
    load: float | None
    """The curve's value at this batch over that at the expected batch."""
    acceptance: float | None
    """Expected tokens per step over the current ones: coverage, draft length, acceptance by position."""


def find_losses(case: PoolCase) -> Losses:
    """Return the losses of a pool."""
    yardstick, good, window = case.expected.yardstick, case.good, case.window
    now = window.tokens_per_decode_step or window.tokens_per_step
    expected = None if good is None else good.tokens_per_decode_step or good.tokens_per_step
    then = None if good is None else yardstick.step_s(good.batch)
    return Losses(
        machine=_log_ratio(window.step_s, yardstick.step_s(window.batch)),
        load=_log_ratio(yardstick.step_s(window.batch), then),
        acceptance=_log_ratio(expected, now),
    )


def find_request_loss(window: Window, excess_s: float | None) -> float | None:
    """Return the log loss from excess seconds, summed over all finished requests, relative to their total time."""
    parts = (window.sums.queue_s, window.sums.prefill_s, window.sums.decode_s)
    total = sum(part for part in parts if part is not None)
    if excess_s is None or None in parts or not 0 <= excess_s < total:
        return None
    return -log(1 - excess_s / total)


def differ_in_prompts(a: Window, b: Window, *, computed: bool = False) -> bool:
    """Return whether the requests of two pools differ too much in length for comparing their times.

    Args:
        a: window of one pool.
        b: window of the other pool.
        computed: whether to count only prompt tokens that missed the prefix cache.
    """
    pairs = [(each.mean_prompt_tokens, each.prefix_hit_rate) for each in (a, b)]
    lengths = [p * (1 - h) if p and computed and h is not None else p for p, h in pairs]
    few = min(count_requests(a), count_requests(b))
    slack = _PROMPT_SIGMAS * _PROMPT_SPREAD / sqrt(few) if few else inf
    x, y = lengths
    return bool(x and y and abs(log(x / y)) > log(LIKE_PROMPTS) + slack)


def is_same_load(a: Window, b: Window) -> bool:
    """Return whether both pools have about the same load per engine, in requests in flight or per second."""
    rates = [(each.finished_per_s or 0.0) / each.engines for each in (a, b)]
    pairs = ((a.batch, b.batch), (rates[0], rates[1]))
    return any(x and y and abs(log(x / y)) < _SAME_LOAD for x, y in pairs)


def _log_ratio(a: float | None, b: float | None) -> float | None:
    return log(a / b) if a and b else None


COLD_S = 3600.0
"""Age up to which a server has seen few answers to draft from."""
LIKE_PROMPTS = 1.25
"""Ratio of prompt lengths up to which prefill times, which have a constant part, are comparable."""
MUCH_LONGER = 2.0
"""Growth of prompt tokens above which contexts count as longer."""
_PROMPT_SPREAD, _PROMPT_SIGMAS = 0.9, 2.0
"""Standard deviation of the length of prompts over requests, in logarithms, and the noise that is allowed for."""
_SAME_LOAD = 0.25
_FULL_CACHE = ("auto", "bfloat16", "float16")
MIN_TOKENS = 200
"""Minimum output tokens for a server to count as generating."""
MIN_DRAFTS = 200
"""Minimum drafts with which zero, or almost zero, acceptance is not chance."""
NOISE = 0.05
"""Share of accepted first tokens that chance reaches, with a foreign drafter and with padding."""
MIN_REQUESTS = 5
"""Minimum finished requests to judge their times."""
SIGMAS = 3.5
"""Number of standard errors that a change must exceed: about twenty rules judge every window."""
_REQUEST_SPREAD = 0.4
"""Standard deviation of a ratio over requests, in logarithms."""
_WINDOW_SPREAD = 0.02
"""What is left of it however many requests there are."""
_ROUNDED = 0.05
_DRAFTS_A_REQUEST = 180
"""Drafts of a request of 350 tokens, for a server that does not count its requests."""


def count_drafted(window: Window) -> int | None:
    """Return the k of a server: vLLM counts as many positions, and a grammar shortens some of its drafts only.

    Servers without such counters may end a draft anywhere: their k is known where every draft has as many tokens.
    """
    positions, mean = len(window.counters.spec.accepted_per_pos), window.mean_k
    if window.counters.spec.num_drafts < MIN_DRAFTS or mean is None:
        return None
    if not positions and abs(mean - round(mean)) > _ROUNDED:
        return None
    return max(positions, ceil(mean - _ROUNDED))


def find_only(case: PoolCase, is_ill: Callable[[Window], bool]) -> str:
    """Return the only replica, or engine of a single one, that is ill; empty for none or more."""
    ill = [name for name, window in case.parts.items() if is_ill(window)]
    return ill[0] if len(ill) == 1 < len(case.parts) else ""


def count_requests(window: Window) -> float:
    """Return the number of requests in a window: finished ones and those in flight."""
    if window.sums.finished is not None:
        return window.sums.finished + (window.load.running or 0.0)
    stats = window.counters.spec
    drafts = stats.num_drafts or (
        stats.num_draft_tokens and (window.sequence_steps or stats.num_draft_tokens / LONGEST)
    )
    return drafts / _DRAFTS_A_REQUEST


def count_verified(window: Window) -> int:
    """Return the drafts; of a server that counts accepted tokens only, such as SGLang, the steps."""
    is_log = window.sums.finished is None  # which may tell of drafts in a later line
    is_untold = window.counts_drafts is None and window.tells_acceptance and not is_log
    return (window.sequence_steps or 0) if is_untold else window.counters.spec.num_drafts


def sampling_error(*windows: Window) -> float:
    """Return the standard error of the log of a reading, or of a ratio of two, from the requests in the windows."""
    requests = [count_requests(window) for window in windows]
    return sqrt(sum(_REQUEST_SPREAD**2 / each for each in requests)) if all(requests) else inf


def relative_error(*windows: Window) -> float:
    """Return the same for a comparison with another time, whose traffic always differs a little."""
    return hypot(_WINDOW_SPREAD, sampling_error(*windows))


def requests_to_tell(change: float, earlier: Window | None) -> float | None:
    """Return the number of requests needed to confirm a log change; None if no number suffices."""
    room = (change / SIGMAS) ** 2 - _WINDOW_SPREAD**2
    room -= 0.0 if earlier is None else _REQUEST_SPREAD**2 / max(count_requests(earlier), 1.0)
    return _REQUEST_SPREAD**2 / room if room > 0 else None


def draft_error(*windows: Window) -> float:
    """Return the same for accepted tokens per draft, whose relative error exceeds that of the acceptance length.

    The first window's acceptance gives the factor.
    """
    length = windows[0].acceptance_length or windows[0].tokens_per_step
    return inf if length is None or length <= 1 else relative_error(*windows) * length / (length - 1)


def is_less(now: float | None, then: float | None, *, by: float, error: float) -> bool:
    """Return whether a reading fell by a share and by more than the noise; False if a value is unknown.

    Args:
        now: current reading.
        then: reference.
        by: smallest relevant share.
        error: standard error of the log of their ratio.
    """
    if now is None or not then:
        return False
    return now <= 0 or log(then / now) > max(-log(1 - by), SIGMAS * error)
