"""Pages of counters of simulated servers, on the clock of the running event loop; and their baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from zlib import crc32

from draftwise.core import (
    BackendError,
    Baseline,
    ClosedLoop,
    Condition,
    Counters,
    Expected,
    Relation,
    Rollback,
    RollbackBasis,
    SpecStats,
)
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP
from draftwise.watching.watcher import Look, read_page
from tests.support.production import BREAK_EVEN, CROSSOVER, Server
from tests.support.web import serving_answers

__all__ = ["EPOCH_S", "SimulatedPage", "make_baseline", "serving_counters"]

EPOCH_S = 1_700_000_000.0
"""When the loop's clock stands at 0."""


class SimulatedPage:
    """What a simulated server shows; `server` may be replaced, and then does something else from now on.

    Args:
        pool: of the server.
        instance: its name.
        ranks: what each of its data-parallel ranks does, by label.
    """

    def __init__(self, pool: str, instance: str, ranks: Server | Mapping[str, Server]) -> None:
        self.pool, self.instance = pool, instance
        self._ranks = dict(ranks) if isinstance(ranks, Mapping) else {"0": ranks}
        self._counted: dict[str, dict[str, float]] = {rank: {} for rank in self._ranks}
        self._at = self._started = _now()
        self.fault: str | None = None
        self.closed = False

    def become(self, ranks: Server | Mapping[str, Server]) -> None:
        """Do something else from now on, without a restart."""
        self._pass_time()
        self._ranks = dict(ranks) if isinstance(ranks, Mapping) else {"0": ranks}

    def restart(self) -> None:
        """Begin anew, with all counters at zero."""
        self._pass_time()
        self._counted = {rank: {} for rank in self._ranks}
        self._started = _now()

    async def look(self) -> Look:
        """Return what the page says now."""
        if self.fault is not None:
            raise BackendError(self.fault)
        self._pass_time()
        return read_page(self.text(), pool=self.pool, instance=self.instance, at_s=EPOCH_S + self._at, clock_s=self._at)

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def text(self) -> str:
        """Return the page."""
        apart = crc32(self.instance.encode()) % 97 / 1000  # no two processes start at the same moment
        lines = [f"process_start_time_seconds {EPOCH_S + self._started - apart}"]
        for rank, server in self._ranks.items():
            samples = {**self._counted[rank], **server.read_gauges()}
            lines += [f"{_name(name, rank)} {value}" for name, value in samples.items()]
        return "\n".join(lines) + "\n"

    def _pass_time(self) -> None:
        now = _now()
        for rank, server in self._ranks.items():
            counted = self._counted.setdefault(rank, {})
            for name, rate in server.count().items():
                counted[name] = counted.get(name, 0.0) + rate * (now - self._at)
        self._at = now


def _now() -> float:
    return asyncio.get_running_loop().time()


def _name(name: str, rank: str) -> str:
    plain, _, labels = name.partition("{")
    return f'vllm:{plain}{{engine="{rank}",model_name="m"' + (f",{labels}" if labels else "}")


def make_baseline(**changes: Any) -> Baseline:
    """Return what a run found of the healthy server of `tests.support.production`."""
    condition = Condition(load=ClosedLoop(concurrency=8))
    limits = {
        (TOKENS_PER_STEP.name, RollbackBasis.BREAK_EVEN, Relation.BELOW): BREAK_EVEN,
        (LOAD_SIGNALS["concurrency"].name, RollbackBasis.BAND_END, Relation.ABOVE): CROSSOVER,
    }
    rules = tuple(
        Rollback(
            workload="chat", arm="eagle3 k=3", metric=metric, relation=relation, value=value, for_s=600.0, basis=basis,
            condition=condition,
        )
        for (metric, basis, relation), value in limits.items()
    )  # fmt: skip
    spec = SpecStats(num_drafts=990, num_draft_tokens=2970, num_accepted_tokens=871, accepted_per_pos=(495, 247, 129))
    made = Baseline(
        setup_sha256="0" * 64,
        run="run",
        arm="eagle3 k=3",
        plain_arm="plain",
        expected=Expected(workload="chat", condition=condition, counters=Counters(spec=spec, generation_tokens=1871)),
        curve_ms={"eagle3 k=3": ((1, 20.0), (8, 27.0), (64, 83.0)), "plain": ((1, 16.0), (8, 20.0), (64, 50.0))},
        rollback=rules,
    )
    return replace(made, **changes)


@contextmanager
def serving_counters(*servers: Server) -> Iterator[list[str]]:
    """Yield the URLs of servers whose counters grow by 1000 s from look to look; each has served 100 s longer than
    the one before, as equal counters are one server's."""

    def answer(server: Server, served_s: float) -> Callable[[str, dict[str, str]], tuple[int, str]]:
        looks = count(1)

        def say(path: str, headers: dict[str, str]) -> tuple[int, str]:
            grown_s = served_s + 1000.0 * next(looks)
            samples = {**{name: rate * grown_s for name, rate in server.count().items()}, **server.read_gauges()}
            return 200, "".join(f"vllm:{name} {value}\n" for name, value in samples.items())

        return say

    with ExitStack() as stack:
        yield [stack.enter_context(serving_answers(answer(server, 100.0 * n))) for n, server in enumerate(servers)]
