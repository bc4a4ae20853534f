"""Services in production and what befalls them: one table of faults, for all that shows or simulates their metrics.

A row of `FAULTS` says how the rates of a server change, which promtool's series and windows are made of, and what
breaks in the servers that `tests.support.simulated_service` simulates request by request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import pi, sin

BREAK_EVEN, MEASURED, CROSSOVER, K = 1.35, 1.87, 40, 3
"""What a run would have found of the healthy server below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What one server does, by the second."""

    steps: float = 300.0
    """Of sequences: a step of a batch of 8 is 8 of them."""
    coverage: float = 0.99
    """Share of the steps that verify a draft."""
    k: float = K
    """Tokens of a draft."""
    positions: tuple[float, ...] = (0.5, 0.25, 0.13)
    """Share of the drafts that are accepted up to each position."""
    step_s: float = 0.027
    finished: float = 1.5
    """Requests."""
    running: float = 8.0
    waiting: float = 0.0
    kv: float = 0.4
    prompt_tokens: float = 500.0
    prefix_hits: float = 0.6
    """Share of the prompt tokens."""
    preemptions: float = 0.0
    failed: float = 0.0
    """Requests that end with an error."""
    speculates: bool = True
    answers: bool = True
    """Whether its page can be read."""

    @property
    def drafts(self) -> float:
        """Drafts that are verified."""
        return self.coverage * self.steps if self.speculates else 0.0

    @property
    def accepted(self) -> float:
        """Draft tokens that are accepted."""
        return self.drafts * sum(self.positions)

    @property
    def generated(self) -> float:
        """Tokens: every step emits one more than it accepts."""
        return self.steps + self.accepted

    def under(self, load: float) -> Server:
        """Return the server under a multiple of its load."""
        rates = ("steps", "finished", "running", "prompt_tokens", "kv")
        return replace(self, **{name: load * getattr(self, name) for name in rates})

    def read_gauges(self) -> Mapping[str, float]:
        """Return vLLM's gauges."""
        if not self.answers:
            return {}
        return {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv,
        }

    def count(self) -> Mapping[str, float]:
        """Return by how much vLLM's counters grow in a second; the label of a position stands in the name."""
        if not self.answers:
            return {}
        counts = {
            "generation_tokens_total": self.generated,
            'request_success_total{finished_reason="stop"}': self.finished - self.failed,
            'request_success_total{finished_reason="error"}': self.failed,
            "request_generation_tokens_sum": self.generated + self.finished,
            "request_generation_tokens_count": self.finished,
            "request_decode_time_seconds_sum": self.steps * self.step_s,
            "prompt_tokens_total": self.prompt_tokens,
            "prefix_cache_queries_total": self.prompt_tokens,
            "prefix_cache_hits_total": self.prompt_tokens * self.prefix_hits,
            "num_preemptions_total": self.preemptions,
        }
        if not self.speculates:
            return counts
        by_position = {
            f'spec_decode_num_accepted_tokens_per_pos_total{{position="{index}"}}': self.drafts * share
            for index, share in enumerate(self.positions)
        }
        return counts | by_position | {
            "spec_decode_num_drafts_total": self.drafts,
            "spec_decode_num_draft_tokens_total": self.drafts * self.k,
            "spec_decode_num_accepted_tokens_total": self.accepted,
        }  # fmt: skip


SPEC = Server()
PLAIN = Server(speculates=False, step_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the servers do for a time."""

    minutes: int
    servers: Mapping[tuple[str, str], Server]
    """By pool and instance; one that is not named is not there."""
    restarted: bool = False
    """Whether they begin with their counters at zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What befalls a service, and which findings say so."""

    name: str
    phases: Sequence[Phase]
    findings: frozenset[str] = field(default_factory=frozenset)
    """Codes of all that are to be reported, those that follow from others included."""


def _pools(
    spec: Server, *, last: Server | None = None, plain: Server = PLAIN, load: float = 1.0, born: str = ""
) -> Mapping[tuple[str, str], Server]:
    """Return three servers that speculate, the last one perhaps otherwise, beside a plain one."""
    servers = {f"{name}{born}": spec for name in "ab"} | {f"c{born}": last or spec}
    pools = {("spec", name): server for name, server in servers.items()} | {("plain", "p"): plain}
    return {key: server.under(load) for key, server in pools.items()}


def _day() -> list[Phase]:
    """Return a day whose load swells and ebbs, down to nothing for an hour."""
    loads = [max(0.0, 0.55 - 0.6 * sin(2 * pi * (hour + 2) / 24)) for hour in range(24)]
    return [Phase(minutes=60, servers=_pools(SPEC, load=load)) for load in loads]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong on the servers that speculate, from one minute to the next."""

    name: str
    diagnosis: str
    """Code that `draftwise watch` is to name first, with a probe and a plain pool beside it."""
    also: frozenset[str] = frozenset()
    """Codes that are as true."""
    alerts: frozenset[str] = frozenset()
    """Codes of all alerts that belong to it, those that follow from others included."""
    rates: Mapping[str, object] | None = None
    """Change of a `Server`; None where its rates do not show it, or too many of them do."""
    simulated: Mapping[str, object] | None = field(default_factory=dict)
    """Change of a simulated server; None where hours would have to be simulated."""
    plain: Mapping[str, object] = field(default_factory=dict)
    """Change of the simulated server without speculation beside it."""
    always: Mapping[str, object] = field(default_factory=dict)
    """What was so from the first day on, the measurement included."""
    last_only: bool = False
    """Whether only the last server of the pool has it."""
    minutes_before: int = 30

    def to_scenario(self) -> Scenario:
        """Return what the service does before and after."""
        changed = replace(SPEC, **self.rates or {})  # type: ignore[arg-type]
        fallen = _pools(SPEC, last=changed) if self.last_only else _pools(changed)
        phases = (Phase(minutes=self.minutes_before, servers=_pools(SPEC)), Phase(minutes=150, servers=fallen))
        return Scenario(name=self.name, phases=phases, findings=self.alerts)


_LOSES = frozenset({"fell-below-break-even", "slower-than-plain"})

_BELOW = frozenset({"fell-below-break-even"})
_HOT_MIX = {"code": 0.05, "chat": 0.6, "hot": 0.35}
_LONG_MIX = {"code": 0.2, "chat": 0.2, "long": 0.6}

FAULTS: Sequence[Fault] = (
    Fault(name="flag lost", diagnosis="spec-off", simulated={"speculates": 0.0}),
    Fault(
        name="roll-out stopped half-way", diagnosis="partial-rollout", simulated={"speculates": 0.0}, last_only=True
    ),
    Fault(
        name="traffic that the drafter does not know",
        diagnosis="traffic-changed",
        alerts=_LOSES,
        rates={"positions": (0.2, 0.06, 0.055)},
        simulated={"mix": _HOT_MIX},
        plain={"mix": _HOT_MIX},
    ),
    Fault(
        name="most requests are left without drafts",
        diagnosis="coverage-lost",
        alerts=_BELOW | {"coverage-lost"},
        rates={"coverage": 0.35, "step_s": 0.0264},
        simulated={"draftable": 0.45},
    ),
    Fault(
        name="lookup finds nothing",
        diagnosis="drafts-stopped",
        alerts=_BELOW | {"drafts-stopped"},
        rates={"coverage": 0.0, "step_s": 0.02},
        simulated={"drafts_on": 0.0},
    ),
    Fault(
        name="a sequence too long for the drafter",
        diagnosis="zero-acceptance",
        alerts=_LOSES | {"zero-acceptance"},
        rates={"positions": (0.0,) * 3},
        simulated={"gate": 1.0},
    ),
    Fault(
        name="weights of another model",
        diagnosis="drafter-noise",
        alerts=_LOSES | {"zero-acceptance"},
        rates={"positions": (0.03, 0.0, 0.0)},
        simulated={"drift": -5.0},
    ),
    Fault(
        name="k too large",
        diagnosis="tail-dead",
        alerts=frozenset({"tail-dead"}),
        rates={"positions": (0.6, 0.3, 0.02)},
        simulated=None,
    ),
    Fault(
        name="structured outputs cut drafts short",
        diagnosis="drafts-shortened",
        alerts=frozenset({"drafts-shortened"}),
        rates={"k": 2.0, "positions": (0.5, 0.25, 0.06)},
        simulated={"cut": 0.8},
    ),
    Fault(
        name="more traffic than speculation pays for",
        diagnosis="above-crossover",
        alerts=frozenset({"above-crossover"}),
        rates={"running": 38.0, "waiting": 6.0},
        simulated={"rate": 0.0, "streams": 120.0},
        plain={"rate": 0.0, "streams": 120.0},
    ),
    Fault(
        name="steps slower, as without graphs",
        diagnosis="step-cost-up",
        alerts=frozenset({"slower-than-plain"}),
        rates={"step_s": 0.048},
        simulated={"machine": 1.9},
    ),
    Fault(name="a GPU that throttles", diagnosis="machine-slower", simulated={"machine": 1.4}, plain={"machine": 1.4}),
    Fault(
        name="a method that drops the last block",
        diagnosis="prefix-lost",
        alerts=frozenset({"prefix-lost"}),
        rates={"prefix_hits": 0.5},
        simulated={"lost_block": 0.4},
    ),
    Fault(
        name="cache too small beside the drafter",
        diagnosis="kv-squeeze",
        alerts=frozenset({"kv-squeeze"}),
        rates={"preemptions": 0.1, "kv": 0.95},
        simulated={"kv_tokens": 7_000.0},
    ),
    Fault(
        name="slots for drafts take the cache",
        diagnosis="admission-squeezed",
        simulated={"kv_tokens": 20_000.0, "reserve": 1_000.0},
        plain={"kv_tokens": 40_000.0},
    ),
    Fault(
        name="replicas are missing",
        diagnosis="queue-grew",
        simulated={"max_running": 10.0},
        plain={"max_running": 10.0},
    ),
    Fault(name="prefill slower", diagnosis="ttft-worse", simulated={"prefill": 2.5}),
    Fault(
        name="one replica with another file",
        diagnosis="replica-outlier",
        alerts=frozenset({"replica-outlier"}),
        rates={"positions": (0.3, 0.12, 0.06)},
        simulated={"drift": -1.4},
        last_only=True,
    ),
    Fault(
        name="outputs that loop",
        diagnosis="too-perfect",
        alerts=frozenset({"too-perfect"}),
        rates={"positions": (0.99, 0.99, 0.99)},
        simulated={"perfect": 1.0},
    ),
    Fault(
        name="state leaks",
        diagnosis="fades-with-uptime",
        alerts=frozenset({"fades-with-uptime"}),
        rates={"positions": (0.3, 0.15, 0.08)},
        simulated=None,
        minutes_before=420,
    ),
    Fault(
        name="state leaks, and one server is old",
        diagnosis="fades-with-uptime",
        simulated={"drift": -1.4, "uptime_s": 3_000_000.0},
        last_only=True,
    ),
    Fault(name="another drafter", diagnosis="drafter-changed", simulated={"drift": -0.7}),
    Fault(name="the drafter's recurrence broke", diagnosis="tail-fell", simulated={"tail_drift": -1.5}),
    Fault(
        name="longer contexts",
        diagnosis="context-grew",
        simulated={"mix": _LONG_MIX, "rate": 4.0},
        plain={"mix": _LONG_MIX, "rate": 4.0},
    ),
    Fault(
        name="an adapter that the drafter does not know",
        diagnosis="lora-changed",
        simulated={"mix": {"code": 0.2, "chat": 0.3, "sql": 0.5}},
        plain={"mix": {"code": 0.2, "chat": 0.3, "sql": 0.5}},
    ),
    Fault(name="asleep", diagnosis="asleep", simulated={"asleep": 1.0}),
    Fault(
        name="long prompts, short answers",
        diagnosis="decode-is-little",
        also=frozenset({"outputs-short"}),
        simulated={"outputs": 0.03, "prompts": 5.0},
        plain={"outputs": 0.03, "prompts": 5.0},
        always={"rate": 0.5, "shared": 0.1},
    ),
    Fault(
        name="retrieval puts more into the prompts",
        diagnosis="prefill-crowds-steps",
        simulated={"prompts": 4.0, "shared": 0.4},
        plain={"prompts": 4.0, "shared": 0.4},
        always={"rate": 6.0, "kv_tokens": 600_000.0},
    ),
)  # fmt: skip
"""Each is planted alone; two of them together show whether one hides the other."""

PAIRS: Sequence[tuple[str, str]] = (
    ("traffic-changed", "kv-squeeze"),
    ("drafter-changed", "prefix-lost"),
    ("step-cost-up", "traffic-changed"),
    ("partial-rollout", "prefix-lost"),
    ("drafts-shortened", "above-crossover"),
    ("coverage-lost", "ttft-worse"),
    ("replica-outlier", "kv-squeeze"),
    ("zero-acceptance", "step-cost-up"),
    ("lora-changed", "prefix-lost"),
    ("tail-fell", "step-cost-up"),
)
"""Diagnoses of faults that befall a service at once."""

SCENARIOS: Sequence[Scenario] = (
    Scenario(name="healthy for a day", phases=_day()),
    Scenario(
        name="restarted",
        phases=(
            Phase(minutes=90, servers=_pools(SPEC)),
            Phase(minutes=90, servers=_pools(SPEC), restarted=True),
        ),
    ),
    Scenario(name="a plain pool alone", phases=(Phase(minutes=120, servers={("plain", "p"): PLAIN}),)),
    Scenario(
        name="too little traffic to tell",
        phases=(Phase(minutes=180, servers=_pools(replace(SPEC, positions=(0.2, 0.06, 0.055)), load=0.0008)),),
    ),
    Scenario(
        name="flag lost in a roll-out",
        phases=(
            Phase(minutes=30, servers=_pools(SPEC)),
            Phase(minutes=60, servers=_pools(replace(PLAIN), born="2")),
        ),
        findings=frozenset({"spec-off"}),
    ),
    Scenario(
        name="one replica no longer answers",
        phases=(
            Phase(minutes=30, servers=_pools(SPEC)),
            Phase(minutes=60, servers=_pools(SPEC, last=replace(SPEC, answers=False))),
        ),
        findings=frozenset({"server-unread"}),
    ),
    *(fault.to_scenario() for fault in FAULTS if fault.rates is not None),
)  # fmt: skip
