"""The guard's loop over its files, in virtual time: kills, restarts, other hands, another guard, drift."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.support.guarding import EVERY_S, RULES, Proxy, reading

from draftwise.core import BackendError, InvalidSetup, UnreadableSource
from draftwise.core.action import OUT, Action, Step
from draftwise.guarding.executors import Executor
from draftwise.guarding.guard_state import Lease, Store, locked
from draftwise.guarding.service_guard import Means, ServiceGuard, Tick
from draftwise.guarding.service_reading import ProbeReading
from draftwise.watching.watcher import Snapshot


class World:
    """A service behind a proxy, and guards that look at it."""

    def __init__(self, folder: Path, **truth: float | str | None) -> None:
        self.folder, self.truth = folder, truth
        self.now_s = 1_767_571_200.0
        self.proxy = Proxy()
        self.probed: list[str] = []
        self.guard = self.start()

    def start(
        self, *, executors: tuple[Executor, ...] | None = None, probes: bool = False, lease: bool = False
    ) -> ServiceGuard:
        leases = (Lease(self.folder / "lease", about="the service", length_s=60),) if lease else ()
        self.guard = ServiceGuard(
            list(self.truth),
            ["plain"],
            rules=RULES,
            store=Store(self.folder / "guard.json"),
            means=Means(
                probe=self.probe if probes else None,
                executors=(self.proxy,) if executors is None else executors,
                leases=leases,
            ),
        )
        return self.guard

    def look(self) -> Snapshot:
        windows = []
        for name, value in {**self.truth, "plain": 1.0}.items():
            if value is not None:
                seen = reading(self.now_s, {name: None if name in self.proxy.out else value}).spec[name]
                assert seen is not None
                windows.append(replace(seen, instance=name))
        return Snapshot(at_s=self.now_s, windows=tuple(windows), recent=())

    async def probe(self, name: str, now_s: float) -> ProbeReading:
        self.probed.append(name)
        if (value := self.truth[name]) is None:
            raise BackendError("It does not answer.")
        assert not isinstance(value, str)
        return ProbeReading(at_s=self.now_s, tokens_per_step=value, is_same=True)

    def run(self, seconds: float, every_s: float = EVERY_S) -> Tick:
        for _ in range(int(seconds / every_s)):
            self.now_s += every_s
            tick = asyncio.run(self.guard.tick(self.look()))
        return tick

    def steps(self) -> list[dict[str, Any]]:
        path = Store(self.folder / "guard.json").steps
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def recorded(self) -> list[tuple[str, str]]:
        """Return what became of the steps; that one begins is written before it is done."""
        rows = self.steps()
        return [(row["outcome"], row["step"]) for row in rows if row["outcome"] != "begun"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, a=1.1)


def codes(tick: Tick) -> set[str]:
    return {finding.code for finding in tick.findings}


def test_a_step_is_carried_out_recorded_with_its_evidence_and_kept(world):
    tick = world.run(60)
    assert world.proxy.out == {"a"}
    assert world.recorded() == [("done", "shift")]
    begun, row = world.steps()
    assert (begun["outcome"], begun["evidence"]) == ("begun", row["evidence"])
    assert row["by"] == "haproxy=fake"
    assert row["evidence"]["break_even"] == 1.35
    assert row["replicas"] == ["a"]
    assert "is-out-of-traffic" in codes(tick)


def test_a_hung_replica_is_taken_out_after_several_reads_of_one_guard(tmp_path):
    world = World(tmp_path, a=1.9, b="hung", c=1.9)
    world.run(20)
    world.start()  # what it read before is no proof any more
    world.run(20)
    assert not world.proxy.out
    tick = world.run(20)
    assert world.proxy.out == {"b"}
    assert world.recorded() == [("done", "drain")]
    assert tick.state.latches["b"].cause == "engine-hung"
    assert "is-out-of-traffic" in codes(tick)


def test_a_server_of_which_one_rank_hangs_is_taken_out_alone(tmp_path):
    world = World(tmp_path, a=1.9, b=1.9, c=1.9)
    look = world.look

    def with_rank() -> Snapshot:
        windows = look().windows
        rank = reading(world.now_s, {"b": "hung"}).spec["b"]
        return Snapshot(at_s=world.now_s, windows=(*windows, replace(rank, instance="b", engine="1")), recent=())

    world.look = with_rank
    world.run(60)
    assert world.proxy.out == {"b"}
    assert world.recorded() == [("done", "drain")]


def test_a_guard_that_begins_again_does_nothing_again_and_forgets_nothing(world):
    world.run(60)
    world.start()
    world.truth["a"] = 1.9
    tick = world.run(600)
    assert world.recorded() == [("done", "shift")]
    assert set(tick.state.latches) == {"a"}


def test_a_probe_puts_it_back_and_is_not_asked_too_often(world):
    world.start(probes=True)
    world.run(60)
    world.truth["a"] = 1.9
    world.run(3600, every_s=30)
    assert world.proxy.out == set()
    assert world.recorded() == [
        ("done", "shift"),
        ("proposed", "release"),
        ("done", "release"),
    ]  # within the hour, told
    assert 3 <= len(world.probed) <= 5


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("sees", [True, False])
def test_killed_in_the_middle_of_a_step(world, when, sees):
    """It is on disk that the step was begun: what came of it is looked for, and where nobody can say, it is told."""

    def carry_out(action: Action) -> None:
        if when == "after":
            Proxy.carry_out(world.proxy, action)
        raise Killed

    world.proxy.sees = sees
    world.proxy.carry_out = carry_out
    with pytest.raises(Killed):
        world.run(60)
    del world.proxy.carry_out
    world.start()
    tick = world.run(10)
    if not sees:
        assert "step-unconfirmed" in codes(tick)
        assert set(tick.state.latches) == {"a"}
    else:
        assert set(tick.state.latches) == ({"a"} if when == "after" else set())
    world.run(600)
    assert sum(action.step in OUT for action in world.proxy.done) == (when == "after")  # no second within the hour


def test_killed_while_it_puts_a_replica_back(world):
    world.start(probes=True)
    world.run(60)
    world.truth["a"] = 1.9

    def carry_out(action: Action) -> None:
        raise Killed

    world.proxy.carry_out = carry_out
    with pytest.raises(Killed):
        world.run(3700, every_s=30)
    del world.proxy.carry_out
    world.start()
    assert set(world.run(60).state.latches) == {"a"}
    assert world.proxy.out == {"a"}


def test_a_step_that_fails_is_told_and_what_is_so_counts(world):
    world.proxy.broken = BackendError("HAProxy does not obey.")
    tick = None
    for _ in range(30):
        tick = world.run(2)
        if "step-failed" in codes(tick):
            break
    assert "step-failed" in codes(tick)
    assert not world.run(10).state.latches
    world.proxy.broken = None
    assert [outcome.partition(":")[0] for outcome, _ in world.recorded()] == ["failed"]
    world.run(3700, every_s=10)
    assert world.proxy.out == {"a"}


def test_who_puts_it_back_by_hand_is_not_fought(world):
    world.run(60)
    world.proxy.out.clear()
    tick = world.run(4 * 3600, every_s=10)
    assert "step-undone-elsewhere" in codes(tick)
    assert not world.proxy.out
    with world.guard._store.alone():
        world.guard._store.write(world.guard._store.read().acknowledge(world.now_s))
    tick = world.run(60)
    assert world.proxy.out == {"a"}


def test_the_first_executor_that_can_is_asked(world):
    cannot, first, second = (Proxy(name=name) for name in ("cannot", "first", "second"))
    cannot.steps = frozenset({Step.RESTART})
    world.start(executors=(cannot, first, second))
    world.run(60)
    assert [each.out for each in (cannot, first, second)] == [set(), {"a"}, set()]


def test_without_executors_it_proposes(world):
    world.start(executors=())
    world.run(60)
    world.truth["a"] = None  # and is not troubled by a service that is gone
    world.run(60)
    assert not world.proxy.done


def test_nothing_to_read_is_an_alarm(world):
    world.run(60)
    world.truth["a"] = None
    assert "nothing-is-read" not in codes(world.run(10))

    def blind() -> Snapshot:
        return Snapshot(at_s=world.now_s, windows=(), recent=())

    world.look = blind
    world.start()
    assert "nothing-is-read" in codes(world.run(600))
    assert world.recorded() == [("done", "shift")]


@pytest.mark.parametrize("back_s", [1800.0, 86_400.0])
def test_a_clock_that_is_set_back_neither_blinds_the_guard_nor_ends_its_hour(tmp_path: Path, back_s: float) -> None:
    world = World(tmp_path, a=1.1, b=1.9, c=1.9)
    world.run(60)
    assert world.proxy.out == {"a"}
    world.now_s -= back_s
    world.truth["b"] = 1.1
    world.run(3500, every_s=10.0)
    assert world.proxy.out == {"a"}
    world.run(300, every_s=10.0)
    assert world.proxy.out == {"a", "b"}
    fresh = World(tmp_path / "fresh", a=1.9, b=1.9)
    (tmp_path / "fresh").mkdir()
    fresh.run(60)
    fresh.now_s -= back_s
    fresh.truth["a"] = 1.1
    fresh.run(90)
    assert fresh.proxy.out == {"a"}


def test_two_guards_of_one_service_do_not_fight(world):
    first = world.start(lease=True)
    world.run(10)
    world.start(lease=True)
    with pytest.raises(InvalidSetup, match="already guards the service"):
        world.run(2)
    first.release()
    world.run(60)
    assert world.recorded() == [("done", "shift")]
    world.guard = first
    with pytest.raises(InvalidSetup, match="already guards the service"):
        world.run(2)


def test_a_lease_of_a_dead_process_is_free_and_one_of_another_host_runs_out(tmp_path):
    path = tmp_path / "lease"
    other = {"token": "x", "host": "elsewhere", "pid": 1, "until_s": 100.0}
    path.write_text(json.dumps(other))
    lease = Lease(path, about="it", length_s=60)
    with pytest.raises(InvalidSetup, match=r"expires \(40 s\)"):
        lease.renew(60.0)
    lease.renew(101.0)
    import socket

    path.write_text(json.dumps(other | {"host": socket.gethostname(), "pid": 2**22 + 1}))
    lease.renew(60.0)


def test_a_state_of_something_else_is_refused(tmp_path):
    path = tmp_path / "guard.json"
    path.write_text('{"format": "draftwise-baseline", "version": 1}')
    with pytest.raises(UnreadableSource, match="not a guard state"):
        Store(path).read()


def test_drift_is_learned_from_the_rows_on_disk_and_told_until_it_is_acknowledged(tmp_path):
    world = World(tmp_path, a=1.9)
    world.run(86_400, every_s=300)
    store = Store(tmp_path / "guard.json")
    day = store.read_rows()
    store.add_older([replace(row, began_s=row.began_s - back * 86_400) for back in range(1, 21) for row in day])
    world.start()
    tick = world.run(600, every_s=300)
    assert tick.state.drift_model is not None
    world.start()  # the model and the sums are kept
    world.truth["a"] = 1.65
    tick = world.run(6 * 3600, every_s=300)
    assert "acceptance-drifted" in codes(tick)
    assert not world.proxy.done
    world.guard._store.write(tick.state.acknowledge(world.now_s))
    tick = world.run(600, every_s=300)
    assert {"acceptance-drifted", "drift-not-learned"} & codes(tick) == {"drift-not-learned"}


def test_before_that_it_says_how_much_is_missing(world):
    world.truth["a"] = 1.9
    tick = world.run(3 * 86_400 + 600, every_s=300)
    (finding,) = (each for each in tick.findings if each.code == "drift-not-learned")
    assert finding.message.startswith("3 of 21 days")


def test_rows_are_bounded_and_a_cut_off_line_is_a_gap(tmp_path, monkeypatch):
    from draftwise.guarding import guard_state as module
    from draftwise.watching.drift import DriftRow

    monkeypatch.setattr(module, "KEPT_ROWS", 10)
    monkeypatch.setattr(module, "_SLACK_ROWS", 5)
    store = Store(tmp_path / "guard.json")
    for i in range(40):
        store.add_row(DriftRow(began_s=300 * i, drafts=i, accepted=i))
    assert [row.drafts for row in store.read_rows()] == list(range(30, 40))
    rows = tmp_path / "guard.rows.csv"
    assert len(rows.read_text().splitlines()) <= 15
    with rows.open("a") as file:
        file.write("12000,4")
    again = Store(tmp_path / "guard.json")
    again.add_row(DriftRow(began_s=12300, drafts=41, accepted=1, usable=False))
    assert [row.drafts for row in again.read_rows()][-2:] == [39, 41]
    assert again.read_rows()[-1].usable is False


def test_a_week_is_bounded_in_memory_and_on_disk(world):
    world.truth["a"] = 1.9
    tick = world.run(7 * 86_400, every_s=300)
    assert sum(map(len, tick.state.recent.values())) < 20
    assert sum(path.stat().st_size for path in world.folder.iterdir()) < 100_000
    assert Step.SHIFT not in [step for _, step in world.recorded()]


def test_locks_leave_no_file_and_let_one_in_at_a_time(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def add() -> None:
        for _ in range(25):
            with locked(counter):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [Thread(target=add) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert counter.read_text() == "200"
    assert [each.name for each in tmp_path.iterdir()] == ["counter"]
