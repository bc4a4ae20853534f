"""Machines and servers with one kind of trouble each, drawn from a seed: what `fault_injection.py` measures on."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fake_server import FakeScript
from tests.support.fake_server.engine import FakeEngine
from tests.support.measuring import make_plan

from draftwise.core import Arm, ClosedLoop, Condition, Prompt, RunPlan, Setup, SpecConfig, Workload
from draftwise.knowledge.spec_keys import find_remembering
from draftwise.measure.device_state import DeviceReader
from draftwise.measure.experiment import no_device

__all__ = ["KINDS", "World", "make_world"]

Spell = tuple[float, float, float]
"""Begin, end and factor on latencies, in seconds since the run began."""

STEP_S = 0.030
FIRST_S = 0.100
HORIZON_S = 1500.0
"""Trouble is drawn for this long; the runs are shorter."""
MHZ = 3000.0
CORES = 2
LOADS = ((1,), (8,), (1, 4, 8))
MOST_TROUBLED = 0.9
BUDGETS_S = (None, 90.0, 240.0, 600.0)
"""`--minutes` 1.5 to 10, or none."""


@dataclass(kw_only=True)
class World:
    """What a trial measures, and on what."""

    rng: random.Random
    truth: float
    num_prompts: int
    loads: tuple[int, ...]
    adaptive: bool
    repeats: int
    budget_s: float | None
    spec: SpecConfig | None = field(default_factory=lambda: SpecConfig(method="ngram", num_speculative_tokens=1))
    is_remote: bool = False
    """Whether the servers run elsewhere, so that nothing is read of their machine."""
    has_pressure: bool = True
    """Whether the machine tells for how long something waited for a core."""
    busy: tuple[Spell, ...] = ()
    """In which a process of others takes a core."""
    slow: tuple[Spell, ...] = ()
    """In which the machine is slow, whatever the reason."""
    spread: float = 0.0
    """Standard deviation between prompts of the logarithm of what the candidate does for them."""
    plain: dict[str, Any] = field(default_factory=dict)
    candidate: dict[str, Any] = field(default_factory=dict)
    """Fields of the scripts; spells are since the run began."""
    _engines: Sequence[FakeEngine] = ()

    @property
    def about(self) -> str:
        """What was drawn, in a line."""
        minutes = "no end" if self.budget_s is None else f"{self.budget_s / 60:.1f} minutes"
        loads = ",".join(map(str, self.loads))
        seen = "remote" if self.is_remote else f"here{'' if self.has_pressure else ', no pressure information'}"
        config = "unknown config" if self.spec is None else self.spec.method
        return (
            f"c={loads}, {self.num_prompts} prompts, {self.repeats} repetitions, adaptive {self.adaptive}, {minutes}, "
            f"{seen}, {config}"
        )

    @cached_property
    def plan(self) -> RunPlan:
        """What is measured."""
        urls = ("http://10.0.0.1:8000", "http://10.0.0.2:8000") if self.is_remote else (None, None)
        setup = Setup(target="fake", engine="vllm", engine_version="fake-1")
        plain = Arm(name="plain", setup=setup, url=urls[0])
        arms = (plain, replace(plain.with_spec(self.spec), name="candidate", url=urls[1]))
        # Prompts differ from their first block on: what prefix caches make of common beginnings would be a true effect.
        prompts = (
            Prompt(id=f"p{i}", text=f"{self.rng.random():.17f} {i}", max_tokens=self.rng.randint(14, 28))
            for i in range(self.num_prompts)
        )
        return make_plan(
            arms=arms,
            remembering=find_remembering(arms),
            workloads=(Workload(name="code", source="test", prompts=tuple(prompts)),),
            conditions=tuple(Condition(load=ClosedLoop(concurrency=each), temperature=0.0) for each in self.loads),
            repeats=self.repeats,
            adaptive=self.adaptive,
        )

    @cached_property
    def scripts(self) -> tuple[FakeScript, FakeScript]:
        """The two servers.

        Where prompts gain differently, the effect is that of what decides: the typical prompt with one stream; under
        load the server's throughput, for which the mean time of all prompts counts.
        """
        typical = math.exp(-(self.spread**2) / 2) if max(self.loads) > 1 else 1.0
        seeds = self.rng.randrange(2**30), self.rng.randrange(2**30)
        noise = {"jitter": 0.03, "step_jitter": 0.04, "drift_per_s": 1e-5}
        plain = {"seed": seeds[0], "step_s": STEP_S, "first_token_s": FIRST_S, **noise, **self.plain}
        factor = typical / self.truth
        # A gain without a draft that stands is no speculation, and not adopted; what is no gain drafts in vain.
        accepted = (0,) if abs(math.log(self.truth)) < 0.03 else (1, 0)
        per_step = 1 + sum(accepted) / len(accepted)
        times = {"step_s": STEP_S * factor * per_step, "first_token_s": FIRST_S * factor}
        drafting = {"seed": seeds[1], "k": 1, "accepted": accepted, "prompt_spread": self.spread}
        return self._script(plain), self._script({**times, **drafting, **noise, **self.candidate})

    def _script(self, fields: Mapping[str, Any]) -> FakeScript:
        """Return a script with the machine's troubles among its own, on the clock of its own start."""
        start_s = fields.get("start_s", 0.0)
        spells = (*self.busy, *self.slow, *fields.get("spells", ()))
        own = tuple((begin - start_s, end - start_s, factor) for begin, end, factor in spells)
        return FakeScript(**{**fields, "spells": own})

    @property
    def read_device(self) -> DeviceReader:
        """What the machine says of itself after a turn; nothing of one that is elsewhere."""
        return no_device if self.is_remote else self._read

    def watch(self, engines: Sequence[FakeEngine]) -> None:
        """Take the engines whose work is the machine's own."""
        self._engines = engines

    @property
    def is_covered(self) -> bool:
        """Whether a trouble of one server lasted for all that was measured of it: then no reading tells them apart."""
        own = zip((self.plain, self.candidate), self._engines, strict=True)
        return any(self._share_troubled(fields, engine) > MOST_TROUBLED for fields, engine in own)

    def _share_troubled(self, fields: Mapping[str, Any], engine: FakeEngine) -> float:
        """Return the share of a server's requests, warm-ups left out, in which it had a trouble of its own."""
        asked = {crc32(json.dumps(prompt.text).encode()) for prompt in self.plan.workloads[0].prompts}
        measured = [each for each in engine.served if each.prompt in asked]
        numbers, spells = fields.get("cold", ()), fields.get("spells", ())
        troubled = sum(
            any(first <= each.number <= last for first, last, _ in numbers)
            or any(begin <= (each.started or 0.0) < end for begin, end, _ in spells)
            for each in measured
        )
        return troubled / len(measured) if measured else 0.0

    async def _read(self) -> Mapping[str, Any]:
        now = asyncio.get_running_loop().time()
        taken_s = sum(min(end, now) - begin for begin, end, _ in self.busy if begin < now)
        own_s = STEP_S * CORES * sum(engine.metrics.generation_tokens for engine in self._engines) / max(self.loads)
        clock = math.prod(factor for begin, end, factor in self.slow if begin <= now < end)
        cpu = {
            "cores": CORES,
            "busy_s": own_s + taken_s,
            "own_s": own_s,
            "steal_s": 0.0,
            "mhz": MHZ / clock,
            **({"waited_s": taken_s} if self.has_pressure else {}),
        }
        return {"monotonic_s": now, "cpu": cpu}


def make_world(kind: str, seed: int, truth: float) -> World:
    """Return the world of a trial; the same for the same arguments."""
    rng = random.Random(f"{kind}/{seed}")
    loads = rng.choice(LOADS)
    world = World(
        rng=rng,
        truth=truth,
        num_prompts=rng.randint(16, 36) * (3 if loads == (8,) else 1),
        loads=loads,
        adaptive=rng.random() < 0.5,
        repeats=rng.randint(3, 5),
        budget_s=rng.choice(BUDGETS_S),
        has_pressure=rng.random() < 0.5,
        is_remote=rng.random() < 0.5,
    )
    KINDS[kind](world)
    return world


def _leave_alone(world: World) -> None:
    """Quiet."""


def _take_a_core(world: World) -> None:
    world.busy = tuple(_windows(world.rng, factor=(1.1, 4.0)))


def _compile_late(world: World) -> None:
    rng, arm = world.rng, _either(world)
    if rng.random() < 0.6:
        first = rng.randint(2, 30)
        arm["cold"] = ((first, first + _part_of_requests(world), rng.uniform(5, 16)),)
    else:
        arm["cold_sizes"] = rng.uniform(5, 16)


def _drift(world: World) -> None:
    rng = world.rng
    if rng.random() < 0.5:
        per_s = math.log(rng.uniform(1.05, 1.6)) / 300
        edges = range(0, int(HORIZON_S), 5)
        world.slow = tuple((float(at), at + 5.0, math.exp(per_s * min(at, 300))) for at in edges)
    else:
        world.slow = tuple(_windows(rng, seconds=(10, 120), factor=(1.05, 1.6)))


def _remember(world: World) -> None:
    rng, what = world.rng, world.rng.choice(("suffix", "unknown", "prefix", "drafter"))
    if what in ("suffix", "unknown"):
        world.candidate |= {"k": 4, "remembers": rng.uniform(0.3, 1.0)}
        world.is_remote = what == "unknown"
        world.spec = SpecConfig(method="suffix", num_speculative_tokens=4) if what == "suffix" else None
        world.num_prompts = rng.choice((6, 16, 36, 80, 160))
    else:
        caching = {"prefix_caching": True, "prefill_s": rng.uniform(0.0005, 0.004)}
        ignores_salts = {"refuses": ("cache_salt",)} if rng.random() < 0.5 else {}
        caches_on = world.candidate if what == "drafter" else _either(world)
        for arm in (world.plain, world.candidate):
            arm["prefill_s"] = caching["prefill_s"]
        caches_on |= caching | ignores_salts


def _take_few_prompts(world: World) -> None:
    world.num_prompts = world.rng.randint(3, 10)
    if world.rng.random() < 0.5:
        _take_a_core(world)


def _vary_prompts(world: World) -> None:
    rng = world.rng
    world.loads = rng.choice(((1,), (8,)))  # the effect that decides differs between them
    if rng.random() < 0.7:
        world.spread = 0.5
    if rng.random() < 0.7:
        tail = (rng.uniform(0.03, 0.15), rng.uniform(1.2, 2.5))
        world.plain["slow_requests"] = world.candidate["slow_requests"] = tail


def _start_later(world: World) -> None:
    rng, arm = world.rng, _either(world)
    arm["start_s"] = rng.uniform(60, 300)
    if world.budget_s is not None:  # nobody gives less than the servers take to start
        world.budget_s += arm["start_s"]
    arm["cold"] = (*arm.get("cold", ()), (1, _part_of_requests(world), rng.uniform(1.3, 6)))


def _disturb_one(world: World) -> None:
    begin = world.rng.uniform(0, 240)
    factor = _log_uniform(world.rng, 1.1, 4)
    _either(world)["spells"] = ((begin, begin + world.rng.uniform(5, 60), factor),)


def _do_everything(world: World) -> None:
    for trouble in (_take_a_core, _compile_late, _drift, _remember, _vary_prompts, _start_later, _disturb_one):
        if world.rng.random() < 0.7:
            trouble(world)
    if world.rng.random() < 0.3:
        world.num_prompts = world.rng.randint(3, 10)


KINDS: Mapping[str, Callable[[World], None]] = {
    "quiet": _leave_alone,
    "busy-core": _take_a_core,
    "late-compiling": _compile_late,
    "drift": _drift,
    "memory": _remember,
    "few-prompts": _take_few_prompts,
    "heavy-tails": _vary_prompts,
    "late-start": _start_later,
    "foreign-load": _disturb_one,
    "everything": _do_everything,
}
"""What each kind of trial does to a quiet world."""


def _either(world: World) -> dict[str, Any]:
    return world.rng.choice((world.plain, world.candidate))


def _part_of_requests(world: World) -> int:
    """Return a number of requests: up to two fifths of those that one load is planned to have."""
    return round(world.rng.uniform(0.05, 0.4) * world.num_prompts * world.repeats)


def _windows(
    rng: random.Random, *, seconds: tuple[float, float] = (2, 60), factor: tuple[float, float]
) -> Iterator[Spell]:
    """Yield spells that come and go, each slow by a factor of its own: together a tenth to six tenths of the time."""
    share, at = rng.uniform(0.1, 0.6), 0.0
    while at < HORIZON_S:
        length = _log_uniform(rng, *seconds)
        at += rng.expovariate(share / ((1 - share) * length))
        yield at, at + length, _log_uniform(rng, *factor)
        at += length


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
