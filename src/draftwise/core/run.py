"""A paired A/B measurement as recorded: its plan, and every reading with its timing."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from draftwise.core.context import RunContext
from draftwise.core.counters import Counters, ServerLoad
from draftwise.core.documents import json_form
from draftwise.core.load import Condition
from draftwise.core.setup import Setup, SpecConfig
from draftwise.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds on one monotonic clock, for one streamed request.

    `chunks` holds (time, number of tokens that arrived); speculation delivers several at once.
    """

    sent: float
    chunks: tuple[tuple[float, int], ...] = field(metadata=json_form(raw=True))
    finished: float
    intended: float | None = None
    """When an open loop intended to send it. Latencies count from then, so a late client cannot hide a slow server (no
    coordinated omission)."""

    @property
    def start(self) -> float:
        """Start of all latencies: the intended send time, else the actual one."""
        return self.sent if self.intended is None else self.intended

    @property
    def send_lag_s(self) -> float:
        """Seconds between the intended and the actual send time."""
        return self.sent - self.start

    @property
    def num_tokens(self) -> int:
        """Output tokens received."""
        return sum(map(itemgetter(1), self.chunks))

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: first chunk minus start. None if nothing arrived."""
        return self.chunks[0][0] - self.start if self.chunks else None

    @property
    def e2e_s(self) -> float:
        """End-to-end latency: end of the stream minus start."""
        return self.finished - self.start

    @property
    def tpot_s(self) -> float | None:
        """Time per output token as vLLM defines it: (last token - first token) / (tokens - 1).

        The first token is excluded. None below two tokens.
        """
        count = self.num_tokens
        return (self.chunks[-1][0] - self.chunks[0][0]) / (count - 1) if count > 1 else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Inter-token latencies between successive chunks (a chunk of several tokens is one arrival)."""
        times = [time for time, _ in self.chunks]
        return tuple(b - a for a, b in pairwise(times))

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens over end-to-end latency."""
        count = self.num_tokens
        return count / self.e2e_s if count and self.e2e_s > 0 else None


_UNKNOWN = Setup(engine="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of the comparison; the setups of arms differ only in `spec`."""

    name: str
    setup: Setup = _UNKNOWN
    """What it serves; known in part if draftwise did not start the server."""
    url: str | None = None
    """Address of a running server; None if draftwise starts it."""
    metrics_url: str | None = None
    """The server's metrics page, if it is not /metrics below `url`."""
    header_names: tuple[str, ...] = ()
    """Names of headers that the operator adds to its requests; their values may be secrets and are never stored."""

    @property
    def spec(self) -> SpecConfig | None:
        """Its speculative config; None for the baseline."""
        return self.setup.spec

    def with_spec(self, spec: SpecConfig | None) -> Arm:
        """Return the arm with another speculative config."""
        return replace(self, setup=replace(self.setup, spec=spec))

    @property
    def is_here(self) -> bool:
        """Whether its server runs on this machine."""
        return self.url is None or urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")

    @property
    def address(self) -> tuple[str, int | None, str] | None:
        """Host, port and path of `url`, normalized; None if draftwise starts the server."""
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        return host, parts.port, parts.path.rstrip("/").removesuffix("/v1")

    @property
    def routing_headers(self) -> tuple[str, ...]:
        """Headers by which a gateway may select the server behind an address: all except the API key."""
        return tuple(name for name in self.header_names if name.lower() != "authorization")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a run sends, fixed before its first request. The first arm is the baseline."""

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    remembering: Mapping[str, str]
    """Why a candidate could remember answers from request to request, by name; an unknown method could. Candidates that
    cannot are left out."""
    conditions: tuple[Condition, ...] = field(default_factory=lambda: (Condition(),))
    repeats: int = 5
    """Maximum times that a prompt is sent; it is repeated only after all others were sent."""
    warmup: int = 3
    seed: int = 0
    turn_s: float = 20.0
    """Seconds of a turn of a steady open loop."""
    adaptive: bool = False
    """Whether settled cells stop early, and bisection finds the crossover of a sweep over load."""
    minutes: float | None = None
    """Time budget of the whole run; None for no limit."""
    one_at_a_time: bool = False
    """Whether only one server runs at a time. Each arm then answers a whole repetition, in the order B A, A B, B A ...,
    so drift cancels over two repetitions."""
    asks_once: bool = True
    """Whether candidates that could remember answers get each prompt only once; false in runs of earlier releases."""

    @property
    def synthetic(self) -> frozenset[str]:
        """Arms with synthetic acceptance, whose text is not the model's."""
        return frozenset(arm.name for arm in self.arms if arm.spec is not None and arm.spec.has_synthetic_acceptance)

    @property
    def asked_once(self) -> tuple[str, ...]:
        """Candidates that get each prompt only once."""
        return tuple(self.remembering) if self.asks_once else ()

    def keep_arms(self, names: Container[str]) -> RunPlan:
        """Return the plan with only the named arms."""
        remembering = {name: reason for name, reason in self.remembering.items() if name in names}
        return replace(self, arms=tuple(arm for arm in self.arms if arm.name in names), remembering=remembering)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request, with its readings."""

    turn: int
    arm: str
    workload: str
    prompt_id: str
    repeat: int
    """Number of the workload's repetition, from 1."""
    timing: Timing
    copy: int = 0
    """Number of this prompt's copy in the turn, from 0: a short workload is sent several times to fill a load."""
    condition: str = "c=1"
    """Label of the condition under which it was sent."""
    measured: bool = True
    """False for background requests, which only keep up the load and are in no number."""
    acceptance: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    """Verification steps by number of accepted draft tokens; empty if the server does not report it per request."""
    text: str = ""
    token_ids: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    """Empty if the server does not report them."""
    prompt_token_ids: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    num_prompt_tokens: int | None = None
    finish_reason: str | None = None
    counts_exact: bool = True
    """Whether the server reported the tokens of each chunk; otherwise one per chunk is assumed."""
    total_exact: bool = True
    """Whether the server reported the tokens of the whole answer; otherwise each arrival counts as one."""
    refusals: int = 0
    """How often the server refused it (HTTP 429 or 503) before it was answered."""
    error: str | None = None

    @property
    def told_steps(self) -> tuple[int, int]:
        """(decoding steps, tokens that they emitted) as the server reported for this request; zeros if it did not."""
        steps = sum(self.acceptance)
        return steps, steps + sum(accepted * count for accepted, count in enumerate(self.acceptance))

    @property
    def seen_steps(self) -> tuple[int, int]:
        """Likewise, inferred from the stream: one chunk per step; prefill emits the first chunk."""
        chunks = self.timing.chunks
        return (len(chunks) - 1, self.timing.num_tokens - chunks[0][1]) if chunks else (0, 0)

    @property
    def steps(self) -> tuple[int, int]:
        """`told_steps` if reported, else `seen_steps`."""
        told = self.told_steps
        return told if told[0] else self.seen_steps

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per decoding step; None if unknown, as with chunks of unknown length."""
        steps, tokens = self.steps
        return tokens / steps if steps and (any(self.acceptance) or self.counts_exact) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How well the load generator kept up during a turn."""

    cpu_s: float = 0.0
    """CPU seconds of its processes together."""
    processes: int = 1
    loop_delay_p99_s: float = 0.0
    """Delay of a timer of the event loop: arrival times are read that much late."""
    loop_delay_max_s: float = 0.0
    send_lag_p99_s: float = 0.0
    """Delay of requests behind their intended time (open loops; 0 in closed ones)."""
    send_lag_max_s: float = 0.0
    clock_jump_s: float = 0.0
    """Change of wall clock minus monotonic clock over the turn; not 0 if the clock was set or the machine slept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn of one arm: its part of a paired block, which all arms answer one after the other."""

    turn: int
    arm: str
    workload: str
    repeat: int
    counters: Counters
    """Growth of the server's counters from just before the turn to just after it."""
    wall_s: float
    condition: str = "c=1"
    block: int = 0
    """Part of the workload; turns of one repetition, block, condition and attempt form a paired block."""
    attempt: int = 0
    """How often turns of the block were taken before and disturbed."""
    is_warm: bool = True
    """False if the pace of the arm's server was not steady yet after the warm-up."""
    began_s: float = 0.0
    """Seconds since the epoch."""
    client: ClientHealth = field(default_factory=ClientHealth)
    expected_s: float | None = None
    """Seconds expected before the session's first request; None if unknown."""
    took_s: float | None = None
    """Seconds in total, including the readings of counters before and after it."""
    before: ServerLoad = field(default_factory=ServerLoad)
    """Gauges just before the turn, when the server has no requests of this run."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """Clocks, temperatures and throttle reasons of GPUs and CPUs after the turn, as far as readable."""

    @property
    def block_key(self) -> tuple[str, str, int, int]:
        """Workload, condition, repetition and block: shared by all turns that were planned together."""
        return self.workload, self.condition, self.repeat, self.block

    @property
    def attempt_key(self) -> tuple[str, str, int, int, int]:
        """`block_key` and the attempt: shared by the turns that are compared."""
        return (*self.block_key, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A disturbed turn. Neither it nor the turns that it is compared with count."""

    workload: str
    condition: str
    repeat: int
    block: int
    attempt: int
    arm: str
    """Arm of the turn."""
    reason: str
    """What disturbed it, as a clause, e.g. `other processes used 0.93 of this machine's 2 cores`."""
    is_faster: bool = False
    """Whether it was far faster than the turns around it, which may be the disturbed ones."""
    by_pace: bool = False
    """Whether only its pace says so, which may be its prompts' own."""

    @property
    def attempt_key(self) -> tuple[str, str, int, int, int]:
        """Workload, condition, repetition, block and attempt."""
        return self.workload, self.condition, self.repeat, self.block, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Both servers' log-probabilities at the position where two greedy outputs diverge."""

    workload: str
    prompt_id: str
    candidate: str
    position: int
    """Number of leading output tokens that both share."""
    plain_token: int | None
    candidate_token: int | None
    """None if that output had ended."""
    gap: float | None
    """Gap in nats from the less likely of the two tokens to the best one, on the server with the smaller gap. Without
    token ids: the gap to the second-best token."""
    condition: str = "c=1"
    among_best: bool | None = None
    """Whether both tokens are among the best of both servers; None without token ids."""
    again: bool | None = None
    """Whether the outputs differed again when both servers were asked again; None if they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A cell that was stopped early to give others its time."""

    workload: str
    condition: str
    candidate: str
    passes: int
    """Complete repetitions that it had; named as the row on disk."""
    blocks: int | None = None
    """Paired blocks of its load begun by then; None in runs of earlier releases."""
    reason: str = ""
    """`settled` if its verdict was final, else why it left the race: `no-gain`, `behind`, `no-time`."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition, self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLook:
    """An interim look at a cell that could stop it; each look spends part of the verdict's allowed error."""

    workload: str
    condition: str
    candidate: str
    pairs: int
    """Pairs measured by then."""
    planned: int
    """Pairs planned."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition, self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProbe:
    """A greedy answer outside all turns, compared with the baseline's answer to the same prompt."""

    arm: str
    """Arm that answered. The baseline's own answers show the effect of rounding in batches of other shapes."""
    workload: str
    prompt_id: str
    tokens: int
    """Number of compared output tokens."""
    shared: int
    """Number of leading tokens that both share; `tokens` if they are equal."""
    gap: float | None = None
    """The gap of a `Divergence`; None if the outputs are equal or the gap is unknown."""

    @property
    def is_equal(self) -> bool:
        """Whether the two are equal."""
        return self.shared >= self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmPace:
    """Seconds per decoding step of a server on warm-up prompts: the fewest before, the mean at the end of the run."""

    arm: str
    seconds: float
    is_late: bool
    """Whether it is of the end of the run, and not of its warm-up."""

    def __post_init__(self) -> None:
        if not 1e-9 < self.seconds < 1e9:
            raise ValueError(f"a decoding step cannot take {self.seconds} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """A part of the plan that was not measured, for lack of time or because a server failed."""

    what: str
    """The omitted part of the plan: `repetitions 4 to 5`, `loads c=4, c=16`, `candidate eagle k=3`."""
    reason: str
    """A clause with its evidence: `they would take 210 s and 95 s are left`."""
    candidate: str | None = None
    """Candidate that is left out entirely; None if the omission concerns all candidates."""
    error: str = ""
    """Error from the candidate's server or its log, if it failed before anything was measured."""
    is_final: bool = False
    """Whether it was removed from the plan, so resuming the run does not measure it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The forecast speed-up of a candidate, stored before the run's first request."""

    candidate: str
    workload: str
    load: str
    """Label of the condition, e.g. `c=8`."""
    value: float
    low: float
    """Lower end of the 90 % interval."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected time for the rest of a session's turns, and the progress at that moment."""

    at_s: float
    """Seconds since the command started."""
    done: int
    """Turns measured in the session."""
    ahead: int
    """Turns left to measure; 0 at its end."""
    left_s: float
    """Seconds expected for these, server starts included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All data of a run; every number of a report is a function of it."""

    plan: RunPlan
    context: RunContext
    answers: tuple[Answer, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    added: tuple[Condition, ...] = ()
    """Unplanned conditions: loads between planned ones, measured to find where speculation stops paying."""
    settled: tuple[Settled, ...] = ()
    """Cells that were stopped early."""
    looks: tuple[CellLook, ...] = ()
    """Interim looks at cells that could stop them."""
    probes: tuple[OutputProbe, ...] = ()
    """Empty if only outputs of turns were compared."""
    warm_paces: tuple[WarmPace, ...] = ()
    """Empty in runs of earlier releases."""
    omissions: tuple[Omission, ...] = ()
    """What is still left out, in the order of the decisions."""
    expected: tuple[Expectation, ...] = ()
    """Forecasts of its cells; empty without a forecast."""
    estimates: tuple[Estimate, ...] = ()
    """Expected times for the rest, session by session: the first of each before its first request, the last at its
    end."""
    num_unfinished: int = 0
    """Answers on disk of turns that were cut off; in no number, because the load was incomplete."""
    disturbances: tuple[Disturbance, ...] = ()
    """Disturbed turns (found by `draftwise.deciding.disturbance`)."""
    set_aside: tuple[TurnRecord, ...] = ()
    """Turns removed from `turns`: disturbed, or without an undisturbed turn to compare with."""

    @property
    def seconds_short(self) -> float:
        """Seconds of measuring that its last session had ahead when it was stopped; 0 if it came to its end."""
        return self.estimates[-1].left_s if self.estimates and self.estimates[-1].ahead else 0.0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every condition, planned or added."""
        return (*self.plan.conditions, *self.added)
