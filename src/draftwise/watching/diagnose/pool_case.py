"""Defines a rule, and the case it judges: a pool's windows, side information, noise and losses.

Drafts of one request are accepted alike, so that requests are counted and not drafts. The figures are those of windows
of simulated services, whose requests differ as published profiles and the bundled prompts do: the acceptance length
varies by 12 % at 10 requests a window, by 5.8 % at 50 and by 3.9 % at 300.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import hypot, inf, log, sqrt

from draftwise.core import ServerLoad, SpecConfig, Window
from draftwise.knowledge.findings import DiagnosisFact, all_findings
from draftwise.knowledge.methods import find_method
from draftwise.watching.fingerprint import Fingerprint
from draftwise.watching.yardstick import Yardstick


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExpectation:
    """How the pool was when it was known to be good."""

    yardstick: Yardstick = field(default_factory=Yardstick)
    """What its run measured."""
    earlier: Window | None = None
    """A window of the same pool from a time that was good, such as before a roll-out: it knows more than a run does of
    the requests that are served."""

    @property
    def window(self) -> Window | None:
        """The earlier window, else the run's counters as one; None where neither is known."""
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
    """What was given or found out in addition to the counters; None was not asked for, and decides nothing."""

    spec: SpecConfig | None = None
    """The speculative config of the servers."""
    rulings: Mapping[str, str] | None = None
    """What `draftwise check` and `inspect` say of their setup: messages by code."""
    suspects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Known defects of the release that the setup meets, by the diagnosis whose cause they can be."""
    log: str | None = None
    """Text of a server's start-up log."""
    largest_graph: float | None = None
    """Tokens of the largest CUDA graph, as that log has it."""
    probe: Fingerprint | None = None
    """How the answers to the prompts of the baseline's probe differ from those that it has."""
    releases: tuple[str, str] | None = None
    """Releases of the engine, the baseline's and today's, if they differ and nothing else of the setup does."""

    @property
    def schedule(self) -> Sequence[tuple[int, int, int]]:
        """Rows (first, last, k) of a K schedule over the running batch; empty without one."""
        rows = None if self.spec is None else self.spec.options.get("num_speculative_tokens_per_batch_size")
        is_table = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 3 for row in rows)
        return [(first, last, k) for first, last, k in rows] if is_table and rows else []

    def find_ruling(self, codes: Iterable[str]) -> str | None:
        """Return what `check` or `inspect` say under the first of some codes that they name; None for none of them."""
        rulings = self.rulings or {}
        return next((rulings[code] for code in codes if code in rulings), None)

    def find_proof(self, row: DiagnosisFact) -> str | None:
        """Return what a check of the setup, or its start-up log, says for a cause."""
        said = self.find_ruling(row.confirmed_by)
        if said is None and row.logged and self.log is not None:
            said = next((line.strip() for line in self.log.splitlines() if row.logged in line), None)
        return said

    def find_scheduled_k(self, batch: float | None) -> int | None:
        """Return the k of the row that a batch lies in; None without a schedule or outside of it."""
        rows = () if batch is None else self.schedule
        return next((k for first, last, k in rows if batch is not None and first <= batch <= last), None)


@dataclass(frozen=True)
class PoolCase:
    """One pool over one stretch of time."""

    windows: tuple[Window, ...]
    """Windows of the engines; at least one."""
    expected: PoolExpectation = field(default_factory=PoolExpectation)
    plain: Window | None = None
    """Pooled window of the servers without speculation, over the same stretch."""
    asked: SideInfo = field(default_factory=SideInfo)

    @cached_property
    def window(self) -> Window:
        """All engines together."""
        pooled = Window.pooled(self.windows)
        assert pooled is not None, "a pool has at least one engine"
        return pooled

    @cached_property
    def good(self) -> Window | None:
        """The window of a good time."""
        return self.expected.window

    @cached_property
    def error(self) -> float:
        """Standard error of the logarithm of a reading over the good window's, as far as requests make it."""
        earlier = self.expected.earlier
        return relative_error(self.window, *([] if earlier is None else [earlier]))

    @cached_property
    def replicas(self) -> Mapping[str, Window]:
        """The engines of each server together, by instance."""
        names = dict.fromkeys(window.instance for window in self.windows)
        pooled = {name: Window.pooled(each for each in self.windows if each.instance == name) for name in names}
        return {name: window for name, window in pooled.items() if window is not None}

    @cached_property
    def parts(self) -> Mapping[str, Window]:
        """The replicas; of a single one, its engines."""
        ranks = {f"{each.instance}, engine {each.engine}": each for each in self.windows}
        return self.replicas if len(self.replicas) > 1 or len(self.windows) < 2 else ranks

    @property
    def k(self) -> float | None:
        """Configured length of a draft, else what the good window drafted; None where neither is known."""
        asked = None if self.asked.spec is None else self.asked.spec.num_speculative_tokens
        return asked if asked is not None else None if self.good is None else self.good.mean_k

    @cached_property
    def comparable(self) -> Window | None:
        """The plain pool's window where its requests are like these, so that the two can be compared."""
        return None if self.plain is None or differ_in_prompts(self.window, self.plain) else self.plain

    @cached_property
    def gains(self) -> bool:
        """Whether a token takes less time than in a plain pool of like requests and load."""
        mine, plain = self.window.seconds_per_token, self.comparable
        theirs = None if plain is None else plain.seconds_per_token
        if mine is None or theirs is None or plain is None or not is_same_load(self.window, plain):
            return False
        return mine < theirs / max(1.0, self.expected.yardstick.step_ratio(plain, plain=True) or 1.0)

    def find_excluded(self) -> Iterator[str]:
        """Yield causes that what is given and seen rules out, whatever else is asked."""
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
        """Configured method."""
        return None if self.asked.spec is None else self.asked.spec.method

    @cached_property
    def readings(self) -> frozenset[str]:
        """What is at hand, in the words of `DiagnosisFact.needs`."""
        yardstick, asked = self.expected.yardstick, self.asked
        step = yardstick.step_s(self.window.batch)
        at_hand = {
            "metrics": self.window.output_tokens is not None,
            "replicas": len(self.replicas) > 1,
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
        """Return those needs of which no alternative is at hand."""
        return tuple(need for need in needs if not self.readings.intersection(need.split(" or ")))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMatch:
    """What a rule saw."""

    message: str
    """A whole sentence."""
    evidence: tuple[str, ...] = ()
    """Observations."""
    loss: float | None = None
    """Its part of the time per token, as a logarithm; None where nothing is known to hold it against."""
    where: str = ""
    """The server that it is about; empty for the whole pool."""
    fix: str = ""
    """What to do in this case; empty for what the registry says."""
    excludes: frozenset[str] = frozenset()
    """Causes that the same readings rule out."""


@dataclass(frozen=True, slots=True)
class DiagnosisRule:
    """One diagnosis that windows, perhaps with a probe or a config, can decide."""

    code: str
    find: Callable[[PoolCase], RuleMatch | None]
    """Called only with every reading at hand that the code's row in the registry needs."""
    certainty: float = 1.0
    """Certainty of the diagnosis; below 1 for what is more often the consequence of something else."""


def tell(name: str, now: float | None, then: float | None = None, *, of: str = "expected", unit: str = "") -> str:
    """Return an observation, such as `tokens per step 1.21, break-even 1.35`."""
    here = "unknown" if now is None else f"{now:.3g}{unit}"
    return f"{name} {here}" if then is None else f"{name} {here}, {of} {then:.3g}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Logarithms whose sum is that of seconds per token now over expected; None where a reading is missing."""

    machine: float | None
    """Step time over the curve at this batch: machine, graphs, configuration."""
    load: float | None
    """The curve at this batch over the curve at the expected one."""
    acceptance: float | None
    """Expected tokens per step over those now: coverage, draft length, acceptance by position."""


def find_losses(case: PoolCase) -> Losses:
    """Return the parts for a pool."""
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
    """Return what seconds in excess, over all finished requests, cost of the time that these took."""
    parts = (window.sums.queue_s, window.sums.prefill_s, window.sums.decode_s)
    total = sum(part for part in parts if part is not None)
    if excess_s is None or None in parts or not 0 <= excess_s < total:
        return None
    return -log(1 - excess_s / total)


def differ_in_prompts(a: Window, b: Window, *, computed: bool = False) -> bool:
    """Return whether requests of two pools differ so much in length that their times tell nothing of each other.

    Args:
        a: a pool's window.
        b: the other one's.
        computed: whether only the tokens count that the prefix cache does not have.
    """
    pairs = [(each.mean_prompt_tokens, each.prefix_hit_rate) for each in (a, b)]
    lengths = [p * (1 - h) if p and computed and h is not None else p for p, h in pairs]
    few = min(count_requests(a), count_requests(b))
    slack = _PROMPT_SIGMAS * _PROMPT_SPREAD / sqrt(few) if few else inf
    x, y = lengths
    return bool(x and y and abs(log(x / y)) > log(LIKE_PROMPTS) + slack)


def is_same_load(a: Window, b: Window) -> bool:
    """Return whether an engine of either has about as many requests, in flight or a second."""
    rates = [(each.finished_per_s or 0.0) / each.engines for each in (a, b)]
    pairs = ((a.batch, b.batch), (rates[0], rates[1]))
    return any(x and y and abs(log(x / y)) < _SAME_LOAD for x, y in pairs)


def _log_ratio(a: float | None, b: float | None) -> float | None:
    return log(a / b) if a and b else None


COLD_S = 3600.0
"""Age up to which a server has seen few answers to draft from."""
LIKE_PROMPTS = 1.25
"""Ratio of the lengths of prompts up to which their prefill, which has a part that is the same for all, compares."""
MUCH_LONGER = 2.0
"""Times the prompt tokens from which contexts have grown."""
_PROMPT_SPREAD, _PROMPT_SIGMAS = 0.9, 2.0
"""Standard deviation of the length of prompts over requests, in logarithms, and the noise that is allowed for."""
_SAME_LOAD = 0.25
_FULL_CACHE = ("auto", "bfloat16", "float16")
MIN_TOKENS = 200
"""Output tokens with which a server is said to generate."""
MIN_DRAFTS = 200
"""Drafts from which none, or nearly none, accepted is no accident."""
MIN_REQUESTS = 5
"""Finished requests from which their times say something."""
SIGMAS = 3.5
"""Standard errors that a change is beyond: some twenty rules look at every window."""
_REQUEST_SPREAD = 0.4
"""Standard deviation of a ratio over requests, in logarithms."""
_WINDOW_SPREAD = 0.02
"""What is left of it however many requests there are."""
_DRAFTS_A_REQUEST = 180
"""Drafts of a request of 350 tokens, for a server that does not count its requests."""


def count_requests(window: Window) -> float:
    """Return how many requests a window says something of: those that ended, and those under way."""
    if window.sums.finished is not None:
        return window.sums.finished + (window.load.running or 0.0)
    return window.counters.spec.num_drafts / _DRAFTS_A_REQUEST


def sampling_error(*windows: Window) -> float:
    """Return the standard error of the logarithm of a reading, or of a ratio of two, by the requests in the windows."""
    requests = [count_requests(window) for window in windows]
    return sqrt(sum(_REQUEST_SPREAD**2 / each for each in requests)) if all(requests) else inf


def relative_error(*windows: Window) -> float:
    """Return the same for a reading that is held against another time's, whose traffic was never quite the same."""
    return hypot(_WINDOW_SPREAD, sampling_error(*windows))


def requests_to_tell(change: float, earlier: Window | None) -> float | None:
    """Return the requests with which a change, in logarithms, is no accident; None where no number is enough."""
    room = (change / SIGMAS) ** 2 - _WINDOW_SPREAD**2
    room -= 0.0 if earlier is None else _REQUEST_SPREAD**2 / max(count_requests(earlier), 1.0)
    return _REQUEST_SPREAD**2 / room if room > 0 else None


def draft_error(*windows: Window) -> float:
    """Return the same for the accepted tokens of a draft: 1 less than the acceptance length, they vary as much by more.

    The first window's acceptance gives the factor.
    """
    length = windows[0].acceptance_length
    return inf if length is None or length <= 1 else relative_error(*windows) * length / (length - 1)


def is_less(now: float | None, then: float | None, *, by: float, error: float) -> bool:
    """Return whether a reading fell by a share and by more than the noise; not so where one is unknown.

    Args:
        now: the reading.
        then: what it is held against.
        by: smallest share that matters.
        error: standard error of the logarithm of their ratio.
    """
    if now is None or not then:
        return False
    return now <= 0 or log(then / now) > max(-log(1 - by), SIGMAS * error)
