"""Windows of servers of `tests.support.production`, made of their rates without any noise, and what a run found."""

from __future__ import annotations

from dataclasses import replace

from draftwise.core import (
    Baseline,
    ClosedLoop,
    Condition,
    Counters,
    Expected,
    Relation,
    Rollback,
    RollbackBasis,
    ServerLoad,
    SpecConfig,
    SpecStats,
    Sums,
    Window,
)
from draftwise.watching.diagnose import PoolExpectation
from draftwise.watching.fingerprint import Fingerprint
from draftwise.watching.yardstick import Yardstick
from tests.support.production import BREAK_EVEN, CROSSOVER, PLAIN, SPEC, K, Server

ASKED_SPEC = SpecConfig(method="eagle3", num_speculative_tokens=K)
CONDITION = Condition(load=ClosedLoop(concurrency=8))
START_S = 1_790_000_000.0


def make_counters(server: Server, seconds: float) -> Counters:
    """Return by how much the counters of a server grow."""
    drafts = server.drafts * seconds
    return Counters(
        spec=SpecStats(
            num_drafts=round(drafts),
            num_draft_tokens=round(drafts * server.k),
            num_accepted_tokens=round(server.accepted * seconds),
            accepted_per_pos=tuple(round(drafts * share) for share in server.positions) if server.speculates else (),
        ),
        generation_tokens=round(server.generated * seconds),
        prefix_queries=round(server.prompt_tokens * seconds),
        prefix_hits=round(server.prompt_tokens * server.prefix_hits * seconds),
    )


def make_window(
    server: Server, *, pool: str = "spec", instance: str = "a", seconds: float = 1200.0, **changes: object
) -> Window:
    """Return what a server does over a stretch of time; `changes` are of the window itself."""
    finished = server.finished * seconds
    window = Window(
        pool=pool,
        instance=instance,
        engine="0",
        start_s=START_S,
        duration_s=seconds,
        counters=make_counters(server, seconds),
        load=ServerLoad(running=server.running, waiting=server.waiting, kv_usage=server.kv),
        sums=Sums(
            decode_s=server.steps * server.step_s * seconds,
            prefill_s=0.05 * finished,
            queue_s=0.02 * finished,
            first_token_s=0.07 * finished,
            first_tokens=finished,
            finished=finished,
            finished_tokens=(server.generated + server.finished) * seconds,
            prompt_tokens=server.prompt_tokens * seconds,
            engine_steps=server.steps / max(server.running, 1.0) * seconds,
            preemptions=server.preemptions * seconds,
        ),
        counts_drafts=server.speculates,
        uptime_s=300_000.0,
        sleeping=False,
    )
    return replace(window, **changes)  # type: ignore[arg-type]


def make_baseline() -> Baseline:
    """Return what the run found of the healthy server."""
    rules = {
        ("tokens_per_step", RollbackBasis.BREAK_EVEN): (Relation.BELOW, BREAK_EVEN),
        ("requests_in_flight", RollbackBasis.BAND_END): (Relation.ABOVE, float(CROSSOVER)),
    }
    return Baseline(
        setup_sha256="0" * 64,
        arm="spec",
        plain_arm="plain",
        expected=Expected(workload="chat", condition=CONDITION, counters=make_counters(SPEC, 600.0)),
        curve_ms={"spec": ((1, 25.0), (8, 27.0), (64, 33.0)), "plain": ((1, 19.0), (8, 20.0), (64, 22.0))},
        rollback=tuple(
            Rollback(
                workload="chat",
                arm="spec",
                metric=metric,
                relation=relation,
                value=value,
                for_s=300.0,
                basis=basis,
                condition=CONDITION,
            )
            for (metric, basis), (relation, value) in rules.items()
        ),
    )


def expect(*, earlier: Window | None = None, baseline: Baseline | None = None) -> PoolExpectation:
    """Return what a healthy service is held against."""
    return PoolExpectation(yardstick=Yardstick(baseline=baseline), earlier=earlier)


HEALTHY = make_window(SPEC)
PLAIN_WINDOW = make_window(PLAIN, pool="plain", instance="p")
EXPECTED = expect(earlier=HEALTHY, baseline=make_baseline())


def make_fingerprint(num_changed: int, *, change: float = 0.0) -> Fingerprint:
    """Return what a probe of 48 prompts says, of which some take other steps."""
    return Fingerprint(
        num_prompts=48, num_comparable=48, num_changed=num_changed, null=0.04, change=change, error=abs(change) / 10
    )
