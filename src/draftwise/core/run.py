"""Holds a paired A/B measurement as recorded: its plan, and every reading."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from draftwise.core.context import RunContext
from draftwise.core.counters import Counters, ServerLoad
from draftwise.core.documents import json_form
from draftwise.core.load import Condition
from draftwise.core.setup import Setup
from draftwise.core.spec_config import SpecConfig
from draftwise.core.timing import Timing
from draftwise.core.workload import Workload

_UNKNOWN = Setup(engine="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of the comparison: setups of arms differ in `spec` only."""

    name: str
    setup: Setup = _UNKNOWN
    """What it serves; as far as it is known, for a server that somebody else started."""
    url: str | None = None
    """Address of a running server; None if draftwise starts it."""
    metrics_url: str | None = None
    """Page of the server's counters, where it is not /metrics below `url`."""
    header_names: tuple[str, ...] = ()
    """Headers that the operator adds to its requests; their values may be secrets and are never written down."""

    @property
    def spec(self) -> SpecConfig | None:
        """Its speculative config, None for the baseline."""
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
        """Host, port and path of `url`, the same however it is spelt; None when draftwise starts the server."""
        if self.url is None:
            return None
        parts = urlsplit(self.url)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        return host, parts.port, parts.path.rstrip("/").removesuffix("/v1")

    @property
    def routing_headers(self) -> tuple[str, ...]:
        """Headers by which a gateway may tell its server from others at the same address: all but the key."""
        return tuple(name for name in self.header_names if name.lower() != "authorization")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a run sends, decided before its first request. The first arm is the baseline."""

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    remembering: Mapping[str, str]
    """Why a candidate could remember answers from request to request, by its name: what is not known could. Candidates
    that cannot remember are left out."""
    conditions: tuple[Condition, ...] = field(default_factory=lambda: (Condition(),))
    repeats: int = 5
    """Times that prompts are asked at most: a prompt comes back only when all others were asked."""
    warmup: int = 3
    seed: int = 0
    turn_s: float = 20.0
    """How long a turn of a steady open loop lasts."""
    adaptive: bool = False
    """Whether settled cells are stopped early, and the crossover of a sweep over load is bisected."""
    minutes: float | None = None
    """The whole run's time; None for as long as it takes."""
    one_at_a_time: bool = False
    """Whether one server is up at a time. Each arm then answers a whole repetition, in the order B A, A B, B A ...
    Drift cancels over two of them."""
    asks_once: bool = True
    """Whether candidates that could remember answers are asked no prompt twice; not so in earlier runs."""

    @property
    def synthetic(self) -> frozenset[str]:
        """The arms whose acceptance is synthetic, so that their text is not the model's."""
        return frozenset(arm.name for arm in self.arms if arm.spec is not None and arm.spec.has_synthetic_acceptance)

    @property
    def asked_once(self) -> tuple[str, ...]:
        """The candidates that are asked no prompt twice."""
        return tuple(self.remembering) if self.asks_once else ()

    def keep_arms(self, names: Container[str]) -> RunPlan:
        """Return the plan with some of its arms only."""
        remembering = {name: reason for name, reason in self.remembering.items() if name in names}
        return replace(self, arms=tuple(arm for arm in self.arms if arm.name in names), remembering=remembering)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request brought back."""

    turn: int
    arm: str
    workload: str
    prompt_id: str
    repeat: int
    """Which repetition of the workload, from 1."""
    timing: Timing
    copy: int = 0
    """Which attempt at this prompt in the turn, from 0: a short workload is sent several times to fill a load."""
    condition: str = "c=1"
    """Label of the condition under which it was sent."""
    measured: bool = True
    """False for background requests, which only keep the load up: no number includes them."""
    acceptance: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    """Verification steps by number of accepted draft tokens, where the server reports it per request; else empty."""
    text: str = ""
    token_ids: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    """Empty where the server does not report them."""
    prompt_token_ids: tuple[int, ...] = field(default=(), metadata=json_form(raw=True))
    num_prompt_tokens: int | None = None
    finish_reason: str | None = None
    counts_exact: bool = True
    """Whether the server said how many tokens each chunk holds (else one a chunk is assumed)."""
    total_exact: bool = True
    """Whether the server said how many tokens the whole answer has; else what arrives at once counts as one."""
    refusals: int = 0
    """How often the server had refused it for want of time (HTTP 429, 503), before it was sent again."""
    error: str | None = None

    @property
    def told_steps(self) -> tuple[int, int]:
        """Decoding steps and the tokens that they brought, as the server told for this request; 0 where it did not."""
        steps = sum(self.acceptance)
        return steps, steps + sum(accepted * count for accepted, count in enumerate(self.acceptance))

    @property
    def seen_steps(self) -> tuple[int, int]:
        """The same as seen from outside: a server sends what each step brings, and prefill emits the first chunk."""
        chunks = self.timing.chunks
        return (len(chunks) - 1, self.timing.num_tokens - chunks[0][1]) if chunks else (0, 0)

    @property
    def steps(self) -> tuple[int, int]:
        """The same as told, else as seen."""
        told = self.told_steps
        return told if told[0] else self.seen_steps

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per decoding step; None where it is not known, as chunks of unknown length tell nothing."""
        steps, tokens = self.steps
        return tokens / steps if steps and (any(self.acceptance) or self.counts_exact) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How well the load generator kept up during a turn."""

    cpu_s: float = 0.0
    """CPU seconds of its processes together."""
    processes: int = 1
    loop_delay_p99_s: float = 0.0
    """How late a timer of the event loop fires: arrival times are read late by as much."""
    loop_delay_max_s: float = 0.0
    send_lag_p99_s: float = 0.0
    """How much later than intended requests went out (open loops; 0 in closed ones)."""
    send_lag_max_s: float = 0.0
    clock_jump_s: float = 0.0
    """Wall clock minus monotonic clock, change over the turn: not 0 when the clock was set or the machine slept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn of one arm: its part of a paired block, which all arms answer one right after the other."""

    turn: int
    arm: str
    workload: str
    repeat: int
    counters: Counters
    """Growth of the server's counters from just before the turn to just after it."""
    wall_s: float
    condition: str = "c=1"
    block: int = 0
    """Which part of the workload: turns of one repetition, block, condition and attempt are a paired block."""
    attempt: int = 0
    """How often turns of the block had been taken before, because something disturbed them."""
    is_warm: bool = True
    """False while the pace of the arm's server had not become steady in the warm-up."""
    began_s: float = 0.0
    """Seconds since the epoch."""
    client: ClientHealth = field(default_factory=ClientHealth)
    expected_s: float | None = None
    """How long it was expected to take before its session's first request; None where that is not known."""
    took_s: float | None = None
    """How long it took all in all, with the readings of counters before and after it."""
    before: ServerLoad = field(default_factory=ServerLoad)
    """Just before the turn, when nothing of this run is on the server."""
    device: Mapping[str, Any] = field(default_factory=dict)
    """Clocks, temperatures and throttle reasons of GPUs and CPUs after the turn, where they can be read."""

    @property
    def block_key(self) -> tuple[str, str, int, int]:
        """Workload, condition, repetition and block: the values shared by the turns planned with it."""
        return self.workload, self.condition, self.repeat, self.block

    @property
    def attempt_key(self) -> tuple[str, str, int, int, int]:
        """The same and the attempt: what it has in common with the turns that it is compared with."""
        return (*self.block_key, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A turn that something disturbed: it counts for nothing, nor does what it would have been compared with."""

    workload: str
    condition: str
    repeat: int
    block: int
    attempt: int
    arm: str
    """Whose turn it was."""
    reason: str
    """What disturbed it, as a clause: `other processes used 0.93 of this machine's 2 cores`."""
    is_faster: bool = False
    """Whether it was far faster than the turns around it: it may be these that something slowed down."""

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
    """Output tokens that both share."""
    plain_token: int | None
    candidate_token: int | None
    """None where that output had ended."""
    gap: float | None
    """Gap in nats from the less likely of the two tokens to the best one, on the server where that is least. Without
    token ids: the gap to the second-best token."""
    condition: str = "c=1"
    among_best: bool | None = None
    """Whether both tokens are among the best of both servers; None where they give no token ids."""
    again: bool | None = None
    """Whether the outputs differed as well when both servers were asked again; None where they were not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A cell that was stopped early, so that others get the time."""

    workload: str
    condition: str
    candidate: str
    passes: int
    """Whole repetitions that it had; the name is that of the row on disk."""
    blocks: int | None = None
    """Paired blocks of its place that were begun by then; None in runs from before it was written down."""
    reason: str = ""
    """`settled` where its verdict stood, else why it left a race: `no-gain`, `behind`, `no-time`."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition, self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLook:
    """A look at a cell with the intention to stop it, which costs a part of the error that its verdict may have."""

    workload: str
    condition: str
    candidate: str
    pairs: int
    """Pairs it had by then."""
    planned: int
    """Pairs it was going to have."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition, self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProbe:
    """A greedy answer outside of all turns, compared with the baseline's to the same prompt."""

    arm: str
    """Who answered: the baseline's own answers tell what rounding in batches of other shapes does to one model."""
    workload: str
    prompt_id: str
    tokens: int
    """Output tokens that were compared."""
    shared: int
    """Tokens that both begin with; all of `tokens` where they are equal."""
    gap: float | None = None
    """The gap of a `Divergence`; None where they are equal, or nothing is known."""

    @property
    def is_equal(self) -> bool:
        """Whether the two are equal."""
        return self.shared >= self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmPace:
    """The fewest seconds that a token of a server took on warm-up prompts, outside of all turns."""

    arm: str
    seconds: float
    is_late: bool
    """Whether it is of the end of the run, and not of its warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """Something that was not measured because the time was needed for the rest, or because a server failed."""

    what: str
    """The omitted part of the plan: `repetitions 4 to 5`, `loads c=4, c=16`, `candidate eagle k=3`."""
    reason: str
    """A clause with its evidence: `they would take 210 s and 95 s are left`."""
    candidate: str | None = None
    """The candidate that is left out entirely; None if the omission concerns all candidates."""
    error: str = ""
    """What the candidate's server, or its log, said, where that failed before anything was measured."""
    is_final: bool = False
    """Whether it was taken out of the plan: no continuation of the run measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The speed-up that a candidate was forecast to have, written down before the run's first request."""

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
    """How long the rest of a session's turns was expected to take, and how far it was by then."""

    at_s: float
    """Seconds since the command."""
    done: int
    """Turns that the session had measured."""
    ahead: int
    """Turns that it was going to measure; 0 at its end."""
    left_s: float
    """Seconds that these were expected to take, starts of servers between them included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a run left behind; every number of a report is a function of it."""

    plan: RunPlan
    context: RunContext
    answers: tuple[Answer, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    added: tuple[Condition, ...] = ()
    """Conditions that were not planned: loads between planned ones, measured to find where speculation stops paying."""
    settled: tuple[Settled, ...] = ()
    """Cells that were stopped early."""
    looks: tuple[CellLook, ...] = ()
    """Looks at cells with the intention to stop them."""
    probes: tuple[OutputProbe, ...] = ()
    """Empty where no outputs were compared but those of turns."""
    warm_paces: tuple[WarmPace, ...] = ()
    """Empty in runs of earlier releases."""
    omissions: tuple[Omission, ...] = ()
    """What is left out still, in the order in which that was decided."""
    expected: tuple[Expectation, ...] = ()
    """Forecasts of its cells; empty where none were made."""
    estimates: tuple[Estimate, ...] = ()
    """How long the rest was expected to take, session after session: the first of each before its first request, the
    last of each at its end."""
    num_unfinished: int = 0
    """Answers on disk of turns that were cut off; no number includes them, as such a turn's load was incomplete."""
    disturbances: tuple[Disturbance, ...] = ()
    """The disturbed ones of all turns (found by `draftwise.deciding.disturbance`)."""
    set_aside: tuple[TurnRecord, ...] = ()
    """Turns that were once in `turns` and do not count: disturbed, or without an undisturbed one to compare with."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every condition, planned or added."""
        return (*self.plan.conditions, *self.added)
