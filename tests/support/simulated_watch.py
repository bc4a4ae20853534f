"""Watches simulated servers as `draftwise watch` watches real ones: their pages of /metrics, read scrape by scrape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np

from draftwise.core import (
    Baseline,
    ClosedLoop,
    Condition,
    Counters,
    Diagnosis,
    Expected,
    ProbeAnswer,
    Relation,
    Rollback,
    RollbackBasis,
    SpecConfig,
    SpecStats,
    Window,
)
from draftwise.watching.diagnose import PoolExpectation, SideInfo, diagnose
from draftwise.watching.fingerprint import Fingerprint, compare_probe, find_null
from draftwise.watching.watcher import Recent, grow, read_page
from draftwise.watching.yardstick import Yardstick
from tests.support.production import Fault
from tests.support.simulated_service import COUNTERS, PLAIN, Server, change, run_server, scrape, simulate_probe

STREAMS = (1, 8, 16, 32, 64, 96, 128)
"""Loads of the run that decided."""
_ROUNDING = 0.02
"""Share of the probe's prompts that take a step more without a cause."""


@dataclass(frozen=True)
class Watched:
    """What is known of a service at one time."""

    spec: tuple[Window, ...]
    plain: tuple[Window, ...]
    expected: PoolExpectation
    asked: SideInfo

    def diagnose(self) -> tuple[Diagnosis, ...]:
        return diagnose({"spec": self.spec}, self.expected, self.plain, self.asked)


def watch(server: Server, *, pool: str, instance: str, seed: int, seconds: float, settle_s: float = 120.0) -> Window:
    """Return the recent past of one server, from its pages; that of servers that others watch too is kept."""
    return _watch(_freeze(server), pool, instance, seed, seconds, settle_s)


Frozen = tuple[tuple[str, object], ...]


def _freeze(server: Server) -> Frozen:
    values = {name: getattr(server, name) for name in server.__dataclass_fields__}
    return tuple((name, tuple(value.items()) if name == "mix" else value) for name, value in values.items())


def _thaw(key: Frozen) -> Server:
    return Server(**{name: dict(value) if isinstance(value, tuple) else value for name, value in key})  # type: ignore[arg-type]


@lru_cache(maxsize=4096)  # for every fault and seed the same healthy servers
def _watch(key: Frozen, pool: str, instance: str, seed: int, seconds: float, settle_s: float) -> Window:
    server = _thaw(key)
    recent = Recent(span_s=seconds + 1)
    before = None
    for at_s, page in scrape(server, seed=seed, seconds=seconds, settle_s=settle_s):
        look = read_page(page, pool=pool, instance=instance, at_s=at_s, clock_s=at_s)
        if before is not None:
            recent.add(grow(before, look))
        before = look
    (window,) = recent.read()
    return window


def run_cell(server: Server, streams: int, seed: int, seconds: float = 60.0) -> dict[str, float]:
    """Return what the counters of a closed loop grew by."""
    closed = change(server, rate=0.0, streams=float(streams))
    before, after = run_server(closed, np.array([30.0, 30.0 + seconds]), seed)
    grown = dict(zip(COUNTERS, after - before, strict=False))
    return grown | {f"position {i}": (after - before)[len(COUNTERS) + i] for i in range(int(server.k))}


@cache
def _measure(key: Frozen, seed: int) -> Baseline:
    server = _thaw(key)
    cells = {(arm, n): run_cell(each, n, seed) for arm, each in _arms(server).items() for n in STREAMS}
    seconds = {at: cell["decode_s"] / (cell["finished_tokens"] - cell["finished"]) for at, cell in cells.items()}
    tokens = {at: cell["generated"] / (cell["generated"] - cell["accepted"]) for at, cell in cells.items()}
    speedup = {n: seconds["plain", n] / seconds["spec", n] for n in STREAMS}
    condition = Condition(load=ClosedLoop(concurrency=16))
    rules = {
        ("tokens_per_step", RollbackBasis.BREAK_EVEN): tokens["spec", 16] / speedup[16],
        ("requests_in_flight", RollbackBasis.BAND_END): _cross(speedup),
    }
    return Baseline(
        setup_sha256="0" * 64,
        arm="spec",
        plain_arm="plain",
        expected=Expected(workload="traffic", condition=condition, counters=_to_counters(cells["spec", 16], server)),
        curve_ms={arm: tuple((n, 1000 * seconds[arm, n] * tokens[arm, n]) for n in STREAMS) for arm in _arms(server)},
        rollback=tuple(
            Rollback(
                workload="traffic",
                arm="spec",
                metric=metric,
                relation=Relation.BELOW,
                value=value,
                for_s=300.0,
                basis=basis,
                condition=condition,
            )
            for (metric, basis), value in rules.items()
        ),
    )


def measure(server: Server, seed: int = 0) -> Baseline:
    """Return the baseline of a run of a service over its loads; runs are kept."""
    odd = {name: getattr(server, name) for name in ("k", "machine", "outputs", "spread", "draftable")}
    odd["mix"] = tuple(server.mix.items())
    return _measure(tuple(odd.items()), seed)


def observe(
    *,
    faults: Sequence[Fault] = (),
    service: Server | None = None,
    seed: int,
    seconds: float = 300.0,
    replicas: int = 2,
    with_plain: bool = True,
    with_probe: bool = True,
    with_earlier: bool = True,
    mix: Mapping[str, float] | None = None,
) -> Watched:
    """Return what is seen of a service in which faults were planted, beside how it was before.

    Args:
        faults: planted together.
        service: a healthy server of it.
        seed: of everything that is drawn.
        seconds: of the window.
        replicas: that speculate.
        with_plain: whether a plain server is watched as well.
        with_probe: whether the probe is sent.
        with_earlier: whether a window of an earlier day is at hand.
        mix: of the traffic now, where it wanders without a fault.
    """
    good = change(service or Server(), **{key: value for fault in faults for key, value in fault.always.items()})
    settle_s = 120.0 if good.rate > 1 else 1200.0
    now = good if mix is None else change(good, mix=mix)
    servers = [_break(now, faults, is_last=index == replicas - 1) for index in range(replicas)]
    plain = change(now, speculates=0.0, **{key: value for fault in faults for key, value in fault.plain.items()})
    spec = tuple(
        watch(server, pool="spec", instance=f"s{i}", seed=100 * seed + i, seconds=seconds, settle_s=settle_s)
        for i, server in enumerate(servers)
    )
    beside = (watch(plain, pool="plain", instance="p", seed=100 * seed + 50, seconds=seconds, settle_s=settle_s),)
    earlier = _watch_earlier(good, replicas, seed) if with_earlier else None
    return Watched(
        spec=spec,
        plain=beside if with_plain else (),
        expected=PoolExpectation(yardstick=Yardstick(baseline=measure(good)), earlier=earlier),
        asked=SideInfo(
            spec=SpecConfig(method="eagle3", num_speculative_tokens=int(good.k)),
            probe=probe(good, servers[0], seed) if with_probe else None,
        ),
    )


def probe(good: Server, now: Server, seed: int) -> Fingerprint:
    """Return what 48 prompts of the baseline say, answered one at a time, beside a sequence that is too long if any."""
    rng = np.random.default_rng([seed, 9])
    repeats = [_answer(good, rng) for _ in range(4)]
    known = [answer for repeat in repeats for answer in repeat]
    return replace(compare_probe(_answer(now, rng), known, find_null(repeats)), alone=not now.gate)


def _answer(server: Server, rng: np.random.Generator) -> list[ProbeAnswer]:
    """Return the answers to 48 prompts of 64 tokens; rounding, which differs from run to run, moves some by a step."""
    steps = simulate_probe(server, 48, 7) + (rng.random(48) < _ROUNDING)
    return [
        ProbeAnswer(prompt_id=str(index), num_tokens=64, num_steps=int(min(count, 64)), text_sha256="")
        for index, count in enumerate(steps)
    ]


def _watch_earlier(good: Server, replicas: int, seed: int) -> Window:
    windows = [
        watch(good, pool="spec", instance=f"s{i}", seed=100 * seed + 70 + i, seconds=900.0) for i in range(replicas)
    ]
    pooled = Window.pooled(windows)
    assert pooled is not None
    return pooled


def _break(server: Server, faults: Sequence[Fault], *, is_last: bool) -> Server:
    for fault in faults:
        if fault.simulated is not None and (is_last or not fault.last_only):
            server = change(server, **fault.simulated)
    return server


def _arms(server: Server) -> dict[str, Server]:
    return {"spec": server, "plain": change(server, speculates=PLAIN.speculates)}


def _cross(speedup: Mapping[int, float]) -> float:
    """Return where the speed-up passes 1, by a straight line between loads."""
    loads = sorted(speedup)
    for low, high in pairwise(loads):
        if speedup[low] > 1 >= speedup[high]:
            return low + (high - low) * (speedup[low] - 1) / (speedup[low] - speedup[high])
    return float(loads[-1])


def _to_counters(cell: Mapping[str, float], server: Server) -> Counters:
    return Counters(
        spec=SpecStats(
            num_drafts=int(cell["drafts"]),
            num_draft_tokens=int(cell["drafted"]),
            num_accepted_tokens=int(cell["accepted"]),
            accepted_per_pos=tuple(int(cell[f"position {i}"]) for i in range(int(server.k))),
        ),
        generation_tokens=int(cell["generated"]),
        prefix_queries=int(cell["queries"]),
        prefix_hits=int(cell["hits"]),
    )
