"""Services that are ill in what they are compared with, and healthy ones that look as if they were.

Each row says what runs, simulated request by request (`simulated_service`), and what is to be named first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftwise.core import Diagnosis, SpecConfig, SpecStats, Sums, Window
from draftwise.watching.diagnose import PoolExpectation, SideInfo, diagnose
from draftwise.watching.yardstick import Yardstick
from tests.support.simulated_service import Server, change
from tests.support.simulated_watch import measure, watch

_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Illness:
    """A service, and what is to be said of it."""

    name: str
    spec: Sequence[Mapping[str, object]] = ({}, {})
    """Changes of each replica."""
    plain: Mapping[str, object] | None = field(default_factory=dict)
    always: Mapping[str, object] = field(default_factory=dict)
    """What was so when the service was measured, too."""
    named: frozenset[str] = frozenset()
    """Codes of which one is named first; empty for a healthy service."""
    allowed: frozenset[str] = frozenset()
    """Notes that may be given."""
    says: str = ""
    """Part of what is said."""
    never: Sequence[str] = ("--plain",)
    """What no text says, as it was given."""
    seconds: float = 300.0
    with_earlier: bool = True
    change: Callable[[int, Window], Window] = lambda _, window: window
    """What is odd about the window of a replica."""
    first_only: bool = False
    """Whether all else follows from what is named."""
    engines: bool = False
    """Whether the replicas are ranks of one server."""

    def observe(self, seed: int) -> tuple[Diagnosis, ...]:
        """Return what is found."""
        good = change(Server(), **{"rate": 8.0, **self.always})
        windows = [
            watch(change(good, **each), pool="spec", instance=f"s{i}", seed=100 * seed + i, seconds=self.seconds)
            for i, each in enumerate(self.spec)
        ]
        windows = [self.change(i, window) for i, window in enumerate(windows)]
        if self.engines:
            windows = [replace(window, instance="s", engine=str(i)) for i, window in enumerate(windows)]
        plain: tuple[Window, ...] = ()
        if self.plain is not None:
            server = change(good, **{"speculates": 0.0, **self.plain})
            plain = (watch(server, pool="plain", instance="p", seed=100 * seed + 50, seconds=self.seconds),)
        earlier = watch(good, pool="spec", instance="s0", seed=100 * seed + 70, seconds=900.0)
        expected = PoolExpectation(
            yardstick=Yardstick(baseline=measure(good)), earlier=earlier if self.with_earlier else None
        )
        asked = SideInfo(spec=SpecConfig(method="eagle3", num_speculative_tokens=int(good.k)))
        return diagnose({"spec": windows}, expected, plain, asked)

    def find_fault(self, found: Sequence[Diagnosis]) -> str:
        """Return what is wrong with what was found; empty for nothing."""
        first = [each for each in found if not each.follows_from and each.code not in self.allowed - self.named]
        text = " ".join(f"{each.message} {each.fix} {each.settles}" for each in found)
        if said := [each for each in self.never if each in text]:
            return f"asks for {said[0]}: {text}"
        if not self.named:
            return f"says {first[0].code}: {first[0].message}" if first else ""
        if not first or first[0].code not in self.named:
            return f"says {[each.code for each in first]}"
        if self.first_only and len(first) > 1:
            return f"says {[each.code for each in first]}"
        return "" if self.says in text else f"does not say {self.says}: {text}"


def _revision(*labels: str) -> Callable[[int, Window], Window]:
    return lambda i, window: replace(window, revision=labels[i])


def _started(*hours: float) -> Callable[[int, Window], Window]:
    return lambda i, window: replace(window, uptime_s=hours[i] * _HOUR)


def _mute(i: int, window: Window) -> Window:
    return replace(window, sums=Sums()) if i == 2 else window


def _rename_drafts(i: int, window: Window) -> Window:
    """Take away a count of drafts, as a release that calls it something else would."""
    renamed = replace(window.counters, spec=SpecStats())
    unknown = replace(window, counters=renamed, counts_drafts=None, tells_acceptance=False)
    return unknown if i == 2 else window


def _thin(_: int, window: Window) -> Window:
    """Let the same steps be of bursts, between which nothing runs for five times as long."""
    return replace(window, load=replace(window.load, running=(window.load.running or 0.0) / 6))


def _of(*codes: str) -> frozenset[str]:
    return frozenset(codes)


_HOT = {"code": 0.3, "chat": 0.4, "hot": 0.3}
_LONG = {"long": 1.0}
_UNLIKE = {"machine": 2.2, "rate": 0.0, "streams": 60.0, "spread": 0.2, "mix": {"code": 1.0}, "draftable": 0.9}
"""One request of ten has no drafts and waits for the others' longer steps."""
_SHORT = {"outputs": 0.03, "rate": 8.0}
_NOTES = _of("outputs-short", "decode-is-little", "no-traffic")

ILLNESSES: Sequence[Illness] = (
    *(
        Illness(name=f"k 3 to {k}", spec=({"k": float(k)},) * 2, named=_of("k-changed"), says=f"{k} tokens; 3 are")
        for k in (1, 2, 5, 7)
    ),
    Illness(
        name="k of half of the replicas", spec=({}, {}, {"k": 5.0}, {"k": 5.0}), named=_of("k-changed"), says="2 of 4"
    ),
    Illness(name="k of one replica", spec=({}, {}, {"k": 2.0}), named=_of("k-changed"), says="1 of 3 servers draft 2"),
    Illness(name="k without a plain pool", spec=({"k": 5.0},), plain=None, named=_of("k-changed"), never=()),
    Illness(
        name="new revision accepts less, half of the replicas",
        spec=({}, {}, {"drift": -0.9}, {"drift": -0.9}),
        change=_revision("a", "a", "b", "b"),
        named=_of("revisions-differ"),
        says="revision b",
    ),
    Illness(
        name="new revision accepts less, most of the replicas",
        spec=({}, {"drift": -0.9}, {"drift": -0.9}, {"drift": -0.9}),
        change=_started(90, 0.2, 0.3, 0.3),
        named=_of("revisions-differ"),
        says="started 18 minutes ago",
    ),
    Illness(
        name="new revision is slower",
        spec=({}, {}, {"machine": 1.5}, {"machine": 1.5}),
        change=_revision("a", "a", "b", "b"),
        named=_of("revisions-differ"),
        says="a step takes",
    ),
    Illness(
        name="newest of three revisions accepts less",
        spec=({}, {}, {}, {}, {"drift": -0.5}, {"drift": -0.5}),
        change=_revision("a", "a", "b", "b", "c", "c"),
        named=_of("revisions-differ"),
        says="revision c",
    ),
    Illness(
        name="1 of 3 serves the base model",
        spec=({}, {}, {}),
        plain=None,
        change=lambda i, window: replace(window, model="x-8B" if i == 2 else "x-8B-Instruct"),
        named=_of("models-differ"),
        says="s2 serves x-8B",
        never=(),
    ),
    Illness(
        name="old revision accepts less",
        spec=({"drift": -0.9}, {"drift": -0.9}, {}, {}),
        change=_revision("a", "a", "b", "b"),
        named=_of("revisions-differ"),
        says="revision a",
    ),
    Illness(
        name="first replica of a new revision",
        spec=({}, {}, {"drift": -1.4}),
        change=_revision("a", "a", "b"),
        named=_of("revisions-differ", "replica-outlier"),
    ),
    Illness(name="1 of 3 replicas slow", spec=({}, {}, {"machine": 1.9}), named=_of("replica-outlier")),
    Illness(
        name="1 of 4 ranks accepts nothing",
        spec=({}, {}, {}, {"gate": 1.0}),
        engines=True,
        named=_of("replica-outlier"),
        says="engine 3",
    ),
    Illness(name="1 of 3 replicas counts little", spec=({}, {}, {}), change=_mute, named=_of("metrics-differ")),
    Illness(
        name="1 of 3 counts little and another is slow",
        spec=({}, {"machine": 1.9}, {}, {}),
        change=_mute,
        named=_of("metrics-differ", "replica-outlier"),
        says="a step takes",
    ),
    Illness(
        name="1 of 3 counts drafts under another name",
        spec=({}, {}, {}),
        change=_rename_drafts,
        named=_of("metrics-differ"),
        says="s2 lacks 1",
    ),
    Illness(
        name="1 of 3 drafts nothing",
        spec=({}, {}, {"drafts_on": 0.0}),
        named=_of("partial-rollout"),
        says="1 of 3 servers",
    ),
    Illness(
        name="answers of 1 of 3 loop", spec=({}, {}, {"perfect": 1.0}), named=_of("too-perfect"), says="On s2, the"
    ),
    Illness(
        name="1 of 3 prefills slowly",
        always={"shared": 0.2},
        spec=({}, {"prefill": 6.0}, {}),
        plain=None,
        named=_of("replica-outlier"),
        never=(),
    ),
    Illness(
        name="requests wait at 1 of 3",
        spec=({}, {}, {"max_running": 5.0}),
        named=_of("queue-grew"),
        says="On s2, a request waits",
    ),
    Illness(
        name="1 of 6 has too little room",
        spec=({},) * 5 + ({"max_running": 8.0},),
        plain=None,
        named=_of("queue-grew"),
        says="On s5, a request waits",
        never=(),
    ),
    Illness(
        name="router sends nearly all to 1 of 4",
        spec=({"rate": 0.0, "streams": 200.0}, {}, {}, {}),
        named=_of("above-crossover"),
        says="s0 has 200 requests in flight",
    ),
    Illness(
        name="KV cache of 1 of 3 is full",
        spec=({}, {}, {"kv_tokens": 7_000.0, "reserve": 1.0}),
        named=_of("kv-squeeze"),
        says="On s2, the",
    ),
    Illness(
        name="P50 better, P99 worse",
        always=_UNLIKE,
        named=_of("p99-worse"),
        says="in the plain pool",
    ),
    Illness(name="plain pool 2.5 times slower", plain={"machine": 2.5}, named=_of("plain-slower")),
    Illness(
        name="pools swapped", spec=({"speculates": 0.0},) * 2, plain={"speculates": 1.0}, named=_of("pools-swapped")
    ),
    Illness(name="plain pool drafts", plain={"speculates": 1.0}, named=_of("plain-pool-drafts")),
    Illness(
        name="both pools slower, no earlier window",
        spec=({"machine": 1.6},) * 2,
        plain={"machine": 1.6},
        with_earlier=False,
        named=_of("step-cost-up"),
        says="Both pools share the cause",
    ),
    Illness(
        name="both pools slower",
        spec=({"machine": 1.6},) * 2,
        plain={"machine": 1.6},
        named=_of("machine-slower"),
    ),
    Illness(
        name="speculative steps slower",
        spec=({"machine": 1.6},) * 2,
        named=_of("step-cost-up"),
        says="The difference comes from speculation",
    ),
    Illness(
        name="queue in both pools",
        spec=({"max_running": 7.0},) * 2,
        plain={"max_running": 7.0},
        named=_of("queue-grew"),
        says="so the load is the cause",
    ),
    Illness(
        name="prefix hits fell in both pools",
        spec=({"shared": 0.4},) * 2,
        plain={"shared": 0.4},
        named=_of("prefix-hits-fell"),
        says="The traffic is the cause",
    ),
    Illness(
        name="speculative servers lose their prefixes",
        spec=({"lost_block": 0.95},) * 2,
        with_earlier=False,
        named=_of("prefix-lost"),
    ),
    Illness(
        name="1 of 3 preempts at peaks of its KV cache",
        spec=({},) * 5 + ({"kv_tokens": 9_000.0, "reserve": 1.0},),
        named=_of("kv-squeeze"),
        says="On s5, the",
    ),
    Illness(
        name="preempted at peaks of the KV cache",
        spec=({"kv_tokens": 9_000.0, "reserve": 1.0},) * 2,
        named=_of("kv-squeeze"),
    ),
    Illness(
        name="prompts ten times as long",
        spec=({"mix": _LONG, "rate": 2.0},) * 2,
        plain={"mix": _LONG, "rate": 2.0},
        named=_of("acceptance-fell", "prefill-crowds-steps"),
        says="A draft gives",
    ),
    Illness(
        name="share of requests at temperature",
        spec=({"mix": _HOT},) * 2,
        plain={"mix": _HOT},
        named=_of("acceptance-fell"),
        says="--probe",
    ),
    Illness(
        name="the same with little traffic",
        spec=({"mix": {"hot": 1.0}, "rate": 0.04},),
        plain=None,
        named=_of("change-unproven", "acceptance-fell"),
        allowed=_of("tail-dead"),
        never=(),
    ),
    Illness(
        name="k 5 of one server of a new revision",
        spec=({}, {}, {}, {"k": 5.0, "mix": {"code": 1.0}}),
        change=_revision("a", "a", "a", "b"),
        named=_of("k-changed"),
        says="1 of 4 servers draft 5",
    ),
    Illness(
        name="tools go to 1 of 3",
        spec=({}, {}, {"cut": 0.8}),
        named=_of("drafts-shortened"),
        says="On s2",
        never=("--plain", "checksums"),
        first_only=True,
    ),
    Illness(name="grammar cuts drafts", spec=({"cut": 0.8},) * 2, named=_of("drafts-shortened")),
    Illness(
        name="k 5 of a new revision, 3 of the old",
        spec=({}, {"k": 5.0}, {"k": 5.0}),
        change=_revision("a", "b", "b"),
        named=_of("k-changed"),
        says="2 of 3",
    ),
)  # fmt: skip
HEALTHY: Sequence[Illness] = (
    Illness(name="as measured"),
    Illness(name="a roll-out of the same", spec=({},) * 4, change=_revision("a", "a", "b", "b")),
    Illness(name="a roll-out of the same, by start", spec=({},) * 4, change=_started(90, 0.2, 0.3, 0.3)),
    Illness(name="answers became short", spec=(_SHORT,) * 2, plain=_SHORT, allowed=_NOTES),
    Illness(name="answers are always short", always=_SHORT, allowed=_NOTES),
    Illness(name="plain pool gets the long prompts", plain={"prompts": 8.0}, allowed=_of("pools-unlike")),
    Illness(name="plain pool gets half of the load", plain={"rate": 4.0}),
    Illness(name="prompts are always long", always={"mix": {"long": 1.0}, "rate": 1.5}),
    Illness(name="few requests a minute", spec=({"rate": 0.1},) * 2, plain={"rate": 0.1}, allowed=_of("no-traffic")),
    Illness(name="drafts as short as measured", always={"cut": 0.3}),
    Illness(name="k 7 as measured", always={"k": 7.0, "mix": {"code": 1.0}}),
    Illness(name="requests in bursts", always={"rate": 0.0, "streams": 60.0}, plain=None, change=_thin),
    Illness(name="unlike replicas in load", spec=({"rate": 4.0}, {"rate": 12.0})),
    Illness(name="one restarted", spec=({},) * 3, change=_started(90, 90, 0.1)),
)
