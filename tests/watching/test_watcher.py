"""Windows of simulated servers on virtual time: restarts, ranks, gaps, and a week in bounded memory."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.production import PLAIN, SPEC
from tests.support.watched import EPOCH_S, SimulatedPage

from draftwise.core import Window
from draftwise.watching.watcher import RECENT_S, Snapshot, Watcher, tick_every


def observe(make: Callable[[], list[SimulatedPage]], looks: int, *, interval_s: float = 10.0, between: Any = None):
    """Return what is seen, and the watcher; `between(pages, number)` runs after each snapshot."""

    async def run() -> tuple[list[Snapshot], Watcher]:
        pages = make()
        loop = asyncio.get_running_loop()
        watcher = Watcher(pages, now=lambda: EPOCH_S + loop.time())
        seen: list[Snapshot] = []
        async for snapshot in watcher.snapshots(interval_s):
            seen.append(snapshot)
            if between is not None:
                between(pages, len(seen))
            if len(seen) == looks:
                break
        return seen, watcher

    return virtual_time.run(run())


def spec_pages(number: int = 1) -> list[SimulatedPage]:
    return [SimulatedPage("spec", f"http://{name}:8000", SPEC) for name in "abcdefghijklmnopqrstuvwxyz"[:number]]


def only(snapshot: Snapshot, pool: str = "spec") -> Window:
    found = Window.pooled(snapshot.of(pool))
    assert found is not None
    return found


def test_the_first_value_comes_after_one_interval_and_is_what_the_server_does() -> None:
    (snapshot,), _ = observe(spec_pages, 1)
    assert snapshot.at_s == pytest.approx(EPOCH_S + 10.0)
    window = only(snapshot)
    assert window.duration_s == pytest.approx(10.0)
    assert window.tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-3)
    assert window.coverage == pytest.approx(SPEC.coverage, rel=1e-3)
    assert window.mean_k == pytest.approx(SPEC.k, rel=1e-3)
    assert window.rate_per_pos == pytest.approx(SPEC.positions, rel=1e-2)
    assert window.step_s == pytest.approx(SPEC.step_s, rel=1e-2)
    assert window.batch == pytest.approx(SPEC.running)
    assert window.uptime_s == pytest.approx(10.0, abs=0.1)
    assert [each.code for each in snapshot.findings] == ["one-page-one-address"]


def test_an_engine_whose_requests_are_gone_does_not_hang() -> None:
    idle = replace(SPEC, steps=0.0, finished=0.0, prompt_tokens=0.0, running=0.0)
    snapshots, _ = observe(spec_pages, 3, between=lambda pages, _: pages[0].become(idle))
    assert snapshots[1].windows[0].load.running == SPEC.running / 2  # the mean of both ends
    assert "engine-hung" not in {each.code for snapshot in snapshots for each in snapshot.findings}


def test_replicas_and_pools_are_kept_apart_and_pooled() -> None:
    pages = lambda: [*spec_pages(2), SimulatedPage("plain", "http://p:8000", PLAIN)]  # noqa: E731
    (snapshot,), _ = observe(pages, 1)
    assert snapshot.pools == ("spec", "plain")
    assert [window.instance for window in snapshot.of("spec")] == ["http://a:8000", "http://b:8000"]
    assert only(snapshot).load.running == pytest.approx(2 * SPEC.running)
    assert only(snapshot).tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-3)
    assert only(snapshot, "plain").counts_drafts is False


def test_a_silent_rank_is_seen_beside_the_one_that_drafts() -> None:
    silent = replace(SPEC, coverage=0.0)
    (snapshot,), _ = observe(lambda: [SimulatedPage("spec", "http://a:8000", {"0": SPEC, "1": silent})], 1)
    first, second = snapshot.of("spec")
    assert (first.engine, second.engine) == ("0", "1")
    assert first.coverage == pytest.approx(SPEC.coverage, rel=1e-3)
    assert second.coverage == 0
    assert only(snapshot).engines == 2


def test_a_restart_begins_the_counters_anew_and_never_counts_backwards() -> None:
    def between(pages: list[SimulatedPage], number: int) -> None:
        if number == 2:
            pages[0].restart()

    seen, _ = observe(spec_pages, 4, between=between)
    assert [only(snapshot).restarted for snapshot in seen] == [False, False, True, True]
    restarted = seen[2].windows[0]
    assert restarted.restarted
    assert restarted.tokens_per_step == pytest.approx(SPEC.generated / SPEC.steps, rel=1e-3)
    assert not seen[3].windows[0].restarted
    assert all((window.output_tokens or 0) >= 0 for snapshot in seen for window in snapshot.recent)


def test_a_server_that_begins_again_and_again_is_named_and_one_new_start_is_not() -> None:
    def between(pages: list[SimulatedPage], number: int) -> None:
        if number in (2, 5):
            pages[1].restart()

    seen, _ = observe(lambda: spec_pages(2), 8, between=between)
    told = [[(each.code, each.where) for each in snapshot.findings] for snapshot in seen]
    assert told[:5] == [[]] * 5
    assert told[5:] == [[("engine-dies", "http://b:8000")]] * 3


def test_counters_that_fall_are_a_restart_where_the_page_tells_no_start() -> None:
    class Shy(SimulatedPage):
        def text(self) -> str:
            return "".join(line for line in super().text().splitlines(keepends=True) if "process_start" not in line)

    def between(pages: list[SimulatedPage], number: int) -> None:
        if number == 5:
            pages[0].restart()

    seen, _ = observe(lambda: [Shy("spec", "http://a:8000", SPEC)], 6, between=between)
    assert [snapshot.windows[0].restarted for snapshot in seen] == [False] * 5 + [True]
    assert seen[-1].windows[0].uptime_s is None


@pytest.mark.parametrize("shows_start", [True, False])
def test_a_crash_loop_is_no_balancer_whether_or_not_the_page_tells_a_start(shows_start: bool) -> None:
    class Page(SimulatedPage):
        def text(self) -> str:
            lines = super().text().splitlines(keepends=True)
            return "".join(line for line in lines if shows_start or "process_start" not in line)

    def between(pages: list[SimulatedPage], number: int) -> None:
        if number in (4, 9, 13):
            pages[0].restart()

    seen, _ = observe(lambda: [Page("spec", "http://a-0:8000", SPEC)], 15, between=between)
    assert [each.code for each in seen[-1].findings] == ["engine-dies"]
    assert seen[-1].recent


def test_an_engine_that_counts_no_drafts_is_named() -> None:
    class Other(SimulatedPage):
        def text(self) -> str:
            return "tgi_batch_current_size 4\ntgi_request_generated_tokens_sum 8000\n"

    (snapshot,), _ = observe(lambda: [Other("spec", "http://a:8000", SPEC)], 1)
    found = {each.code: each.message for each in snapshot.findings}
    assert found["drafts-uncounted"].startswith("http://a:8000 is a server of TGI, whose page does not count drafts.")
    assert "metrics-renamed" not in found


def test_a_gauge_of_sglang_tells_that_it_speculates_and_not_how_many_tokens_a_step_gives() -> None:
    class Other(SimulatedPage):
        def text(self) -> str:
            return "sglang:generation_tokens_total 8000\nsglang:spec_accept_length 2.5\n"

    (snapshot,), _ = observe(lambda: [Other("spec", "http://a:8000", SPEC)], 1)
    (told,) = [each for each in snapshot.findings if each.code == "drafts-uncounted"]
    assert "an acceptance length of 2.50 over its last steps only, so tokens per step are unknown" in told.message
    assert "with speculation" not in told.fix


def test_a_page_of_the_v0_engine_is_named() -> None:
    class Old(SimulatedPage):
        def text(self) -> str:
            return super().text().replace("spec_decode_num_drafts_total", "spec_decode_draft_acceptance_rate")

    (snapshot,), _ = observe(lambda: [Old("spec", "http://a:8000", SPEC)], 1)
    assert {each.code: each.message for each in snapshot.findings}["metrics-v0"] == (
        "http://a:8000 shows vllm:spec_decode_draft_acceptance_rate, a metric of vLLM's V0 engine. "
        "How it speculates is unknown."
    )
    assert "metrics-renamed" not in {each.code for each in snapshot.findings}


def test_a_server_that_cannot_be_read_is_a_finding_and_the_gap_is_one_window() -> None:
    def between(pages: list[SimulatedPage], number: int) -> None:
        pages[1].fault = "http://b:8000 does not answer (refused)." if number in (1, 2) else None

    seen, _ = observe(lambda: spec_pages(2), 4, between=between)
    assert [[finding.code for finding in snapshot.findings] for snapshot in seen] == [
        [], ["server-unread"], ["server-unread"], []
    ]  # fmt: skip
    assert seen[1].findings[0].where == "http://b:8000"
    assert [window.duration_s for window in seen[3].windows] == pytest.approx([10.0, 30.0])


def test_the_recent_past_is_five_minutes_and_forgets_what_is_gone() -> None:
    def between(pages: list[SimulatedPage], number: int) -> None:
        if number == 40:
            pages[0].become(replace(SPEC, positions=(0.1, 0.0, 0.0)))
        if number == 60:
            pages[1].fault = "gone"

    seen, _ = observe(lambda: spec_pages(2), 100, between=between)
    assert RECENT_S <= seen[60].of("spec")[0].duration_s <= RECENT_S * 1.1
    changed = seen[80].of("spec")[0]
    assert changed.tokens_per_step == pytest.approx(1 + 0.99 * 0.1, rel=1e-2)
    assert len(seen[62].of("spec")) == 2
    assert len(seen[99].of("spec")) == 1


def test_gauges_are_weighted_by_time() -> None:
    def between(pages: list[SimulatedPage], number: int) -> None:
        if number == 10:
            pages[0].become(replace(SPEC, running=20.0))

    seen, _ = observe(spec_pages, 20, between=between)
    assert only(seen[-1]).load.running == pytest.approx((8.0 * 10 + 14.0 + 20.0 * 9) / 20)


def test_days_are_watched_in_bounded_memory() -> None:
    sizes = []

    async def run() -> None:
        pages = [SimulatedPage("spec", f"http://{number}:8000", SPEC) for number in range(2)]
        loop = asyncio.get_running_loop()
        watcher = Watcher(pages, now=lambda: EPOCH_S + loop.time())
        number = 0
        async for _ in watcher.snapshots(60.0):
            number += 1
            if number % 97 == 0:
                pages[0].restart()
            if number % 1000 == 0:
                sizes.append(measure(watcher))
            if number == 4 * 1000:
                break

    virtual_time.run(run())
    assert len(sizes) == 4
    assert max(sizes) <= 1.1 * min(sizes)


def measure(thing: Any, seen: set[int] | None = None) -> int:
    """Return the bytes of all that hangs on an object of ours."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        parts = list(thing)
    elif type(thing).__module__.startswith("draftwise"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        parts = [*vars(thing).values()] if hasattr(thing, "__dict__") else [getattr(thing, name) for name in slots]
    return sys.getsizeof(thing) + sum(measure(part, seen) for part in parts)


def test_ticks_keep_their_schedule_and_leave_out_what_was_missed() -> None:
    async def run() -> list[tuple[int, float]]:
        loop = asyncio.get_running_loop()
        seen = []
        async for tick in tick_every(2.0):
            seen.append((tick, loop.time()))
            if tick == 2:
                await asyncio.sleep(5.0)
            if tick >= 6:
                break
        return seen

    assert virtual_time.run(run()) == [(0, 0.0), (1, 2.0), (2, 4.0), (5, 10.0), (6, 12.0)]


def test_intervals_count_from_the_beginning_whatever_takes_time_after_it() -> None:
    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        watcher = Watcher(spec_pages())
        await watcher.begin()
        await asyncio.sleep(3.0)
        snapshots = watcher.snapshots(10.0)
        (window,) = (await anext(snapshots)).windows
        await snapshots.aclose()
        return loop.time(), window.duration_s

    assert virtual_time.run(run()) == (10.0, 10.0)


def test_all_connections_are_closed_in_the_end() -> None:
    kept: list[SimulatedPage] = []

    async def run() -> None:
        kept.extend(spec_pages(2))
        watcher = Watcher(kept)
        snapshots = watcher.snapshots(1.0)
        await anext(snapshots)
        await snapshots.aclose()

    virtual_time.run(run())
    assert [page.closed for page in kept] == [True, True]


@pytest.mark.parametrize("tell", [lambda start: start, round, lambda start: None], ids=["start", "rounded", "no start"])
def test_one_server_at_two_addresses_is_named_and_two_replicas_are_not(tell: Any) -> None:
    class Alias:
        """Another address of a server, in another pool."""

        pool, instance = "plain", "http://127.0.0.1:8000"

        def __init__(self, page: SimulatedPage) -> None:
            self.page = page

        async def look(self) -> Any:
            seen = await self.page.look()
            started = tell(seen.started_s)
            started = None if started is None else float(started)
            return replace(seen, pool=self.pool, instance=self.instance, started_s=started)

        def close(self) -> None:
            pass

    def pages() -> list[Any]:
        own = [*spec_pages(1), SimulatedPage("spec", "http://b:8000", replace(SPEC, steps=200.0))]
        return [*own, Alias(own[0])]

    seen, _ = observe(pages, 3)
    assert [each.code for each in seen[-1].findings] == ["same-server-twice"]
    assert "http://a:8000 and http://127.0.0.1:8000 are the same server" in seen[-1].findings[0].message
    assert observe(lambda: spec_pages(3), 3)[0][-1].findings == ()


@pytest.mark.parametrize("told", [True, False], ids=["starts are told", "no start is told"])
def test_several_servers_behind_one_address_are_no_reading(told: bool) -> None:
    """A balancer in front of two replicas: their pages come in turns."""

    class Balancer:
        pool, instance = "spec", "http://service"

        def __init__(self) -> None:
            self.replicas = [SimulatedPage("spec", self.instance, SPEC) for _ in range(2)]
            self.replicas[0]._started, self.replicas[1]._started = -100.0, -5000.0
            self.turn = 0

        async def look(self) -> Any:
            self.turn += 1
            seen = await self.replicas[self.turn % 2].look()
            if self.turn % 2:
                counters = replace(seen.engines[0], counters=seen.engines[0].counters + seen.engines[0].counters)
                seen = replace(seen, engines=(counters,))
            return seen if told else replace(seen, started_s=None)

        def close(self) -> None:
            pass

    seen, _ = observe(lambda: [Balancer()], 8)  # type: ignore[list-item,return-value]
    assert [each.code for each in seen[-1].findings] == ["several-behind-url"]
    assert seen[-1].recent == ()
    if told:
        assert all([each.code for each in snapshot.findings] == ["several-behind-url"] for snapshot in seen)
