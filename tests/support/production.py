"""Services in production and what befalls them: one table of faults, for whatever shows or simulates their metrics."""

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
    speculates: bool = True

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
        return {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv,
        }

    def count(self) -> Mapping[str, float]:
        """Return by how much vLLM's counters grow in a second; the label of a position stands in the name."""
        counts = {
            "generation_tokens_total": self.generated,
            "request_success_total": self.finished,
            "request_generation_tokens_sum": self.generated + self.finished,
            "request_generation_tokens_count": self.finished,
            "request_decode_time_seconds_sum": self.steps * self.step_s,
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


def _befall(
    name: str, *findings: str, before: int = 30, after: int = 150, last_only: bool = False, **change: object
) -> Scenario:
    """Return a scenario in which the servers that speculate change from one minute to the next."""
    changed = replace(SPEC, **change)  # type: ignore[arg-type]
    fallen = _pools(SPEC, last=changed) if last_only else _pools(changed)
    phases = (Phase(minutes=before, servers=_pools(SPEC)), Phase(minutes=after, servers=fallen))
    return Scenario(name=name, phases=phases, findings=frozenset(findings))


_LOSES = ("fell-below-break-even", "slower-than-plain")

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
    _befall("traffic that the drafter does not know", *_LOSES, positions=(0.2, 0.06, 0.055)),
    _befall("most requests are left without drafts", "fell-below-break-even", coverage=0.35, step_s=0.0264),
    _befall("lookup finds nothing", "drafts-stopped", "fell-below-break-even", coverage=0.0, step_s=0.02),
    _befall("a sequence too long for the drafter", "zero-acceptance", "drafter-noise", *_LOSES, positions=(0.0,) * 3),
    _befall("weights of another model", "drafter-noise", *_LOSES, positions=(0.03, 0.0, 0.0)),
    _befall("k too large", "tail-dead", positions=(0.6, 0.3, 0.02)),
    _befall("structured outputs cut drafts short", "drafts-shortened", k=2.0, positions=(0.5, 0.25, 0.06)),
    _befall("more traffic than speculation pays for", "above-crossover", running=38.0, waiting=6.0),
    _befall("steps slower, as without graphs", "slower-than-plain", step_s=0.048),
    _befall("a method that drops the last block", "prefix-lost", prefix_hits=0.5),
    _befall("cache too small beside the drafter", "kv-squeeze", preemptions=0.1, kv=0.95),
    _befall("one replica with another file", "replica-outlier", last_only=True, positions=(0.3, 0.12, 0.06)),
    _befall("outputs that loop", "too-perfect", positions=(0.99, 0.99, 0.99)),
    _befall("state leaks", "fades-with-uptime", before=420, positions=(0.3, 0.15, 0.08)),
)  # fmt: skip
