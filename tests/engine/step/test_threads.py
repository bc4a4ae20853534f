"""Fewer threads while other processes hold cores, and all of them again when they do not."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import pytest
import torch

from draftwise.engine.step import threads as module
from draftwise.engine.step.threads import Governor, LinuxCores, StepThreads, make_threads


class FairCores:
    """A machine on which every runnable thread gets the same share, and a clock that the test moves on."""

    def __init__(self, cores: int, own: int) -> None:
        self.cores, self.own, self.others = cores, own, 0.0
        self.running, self.trials = own, 0
        self.now_s, self._waits, self._idle_s, self._cpu_s = 100.0, dict.fromkeys(map(str, range(own)), 0.0), 5.0, 3.0

    def waits(self) -> Mapping[str, float]:
        return dict(self._waits)

    def idle_s(self) -> float:
        return self._idle_s

    def cpu_s(self) -> float:
        return self._cpu_s

    def try_core(self) -> Callable[[], float | None]:
        self.trials += 1
        began_s, had_core = self.now_s, min(1.0, self.cores / (self.running + 1 + self.others))
        return lambda: had_core if self.now_s - began_s > 0.1 else None

    def clock(self) -> float:
        return self.now_s

    def run(self, threads: int, seconds: float, *, working: float = 1.0) -> None:
        """Let the process run that many threads, for that share of the time."""
        self.running, wanted = threads, threads * working + self.others
        granted = min(1.0, self.cores / wanted) if wanted else 1.0
        for thread in range(threads):
            self._waits[str(thread)] += seconds * working * (1 - granted)
        self._cpu_s += seconds * threads * working * granted
        self._idle_s += seconds * max(self.cores - wanted, 0.0)
        self.now_s += seconds


@pytest.fixture
def cores() -> FairCores:
    return FairCores(2, own=2)


def drive(governor: Governor, cores: FairCores, seconds: float, *, working: float = 1.0) -> list[int]:
    """Compute steps of 5 ms and return the threads of each."""
    seen = []
    for _ in range(round(seconds / 0.005)):
        seen.append(governor.update())
        cores.run(seen[-1], 0.005, working=working)
    return seen


def changes(seen: list[int]) -> int:
    return sum(a != b for a, b in pairwise(seen))


def test_a_quiet_machine_keeps_all_threads(cores: FairCores) -> None:
    cores.others = 0.2  # the server's own process and a client
    assert set(drive(Governor(2, cores, cores.clock), cores, 10)) == {2}


def test_a_busy_core_costs_a_thread_within_two_windows_and_gives_it_back(cores: FairCores) -> None:
    governor = Governor(2, cores, cores.clock)
    drive(governor, cores, 1)
    cores.others = 1.0
    assert drive(governor, cores, 0.11)[-1] == 1
    cores.others = 0.0
    assert drive(governor, cores, 0.25)[-1] == 2


def test_while_the_core_stays_busy_no_step_gets_one_more_thread_and_trials_are_rare(cores: FairCores) -> None:
    """A step with one too many stalls every stream; a thread that computes nothing of use tells whether it would."""
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    drive(governor, cores, 0.2)
    assert set(drive(governor, cores, 60)) == {1}
    assert 5 < cores.trials < 20  # what runs there may have lower priority


def test_a_trial_of_a_machine_that_has_changed_says_nothing(cores: FairCores) -> None:
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    drive(governor, cores, 0.2)
    ended: list[float] = []
    cores.try_core = lambda: lambda: ended[0] if ended else None
    assert set(drive(governor, cores, 1)) == {1}  # a trial is under way
    cores.others = 0.0
    assert drive(governor, cores, 1)[-1] == 2
    ended.append(1.0)
    cores.others, cores.try_core = 1.0, lambda: lambda: None
    drive(governor, cores, 0.2)
    assert set(drive(governor, cores, 2)) == {1}


def test_where_one_thread_waits_already_no_other_is_tried(cores: FairCores) -> None:
    """With many busy processes a step of two threads takes seconds, which outlast the time for a trial."""
    governor, cores.others = Governor(2, cores, cores.clock), 8.0
    seen = []
    while cores.now_s < 160:
        seen.append(governor.update())
        cores.run(seen[-1], 2.0 if seen[-1] == 2 else 0.05)
    assert seen.count(2) <= 2


def test_after_a_first_slow_step_no_other_is(cores: FairCores) -> None:
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    seen = []
    while cores.now_s < 220:
        seen.append(governor.update())
        cores.run(seen[-1], 2.0 if seen[-1] == 2 else 0.05)
    assert seen.count(2) <= 2


def test_background_work_that_gives_way_does_not_cost_a_thread_for_long(cores: FairCores) -> None:
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    drive(governor, cores, 0.2)
    assert governor.threads == 1
    cores.cores, cores.others = 3, 1.0  # as if the other process had a core of its own, which is never idle
    drive(governor, cores, 0.05)
    cores.idle_s = lambda: 5.0
    assert drive(governor, cores, 5)[-1] == 2


def test_a_core_that_is_half_taken_does_not_make_it_swing(cores: FairCores) -> None:
    governor = Governor(2, cores, cores.clock)
    seen = []
    for i in range(400):  # 20 s in bursts of 50 ms
        cores.others = float(i % 2)
        seen += drive(governor, cores, 0.05)
    assert changes(seen) < 40


def test_many_busy_cores_cost_many_threads_at_once(cores: FairCores) -> None:
    cores = FairCores(16, own=16)
    governor, cores.others = Governor(16, cores, cores.clock), 8.0
    assert drive(governor, cores, 0.3)[-1] <= 11
    cores.others = 0.0
    assert drive(governor, cores, 3)[-1] == 16


def test_a_little_waiting_of_many_threads_does_not_add_up() -> None:
    cores = FairCores(64, own=64)
    governor, cores.others = Governor(64, cores, cores.clock), 2.0
    assert set(drive(governor, cores, 2)) == {64}


def test_rest_between_requests_is_no_room(cores: FairCores) -> None:
    """A thread that sleeps leaves its core idle; that core is not free."""
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    drive(governor, cores, 0.2)
    assert set(drive(governor, cores, 0.3, working=0.1)) == {1}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_it_never_leaves_its_bounds(most: int) -> None:
    cores = FairCores(2, own=most)
    governor = Governor(most, cores, cores.clock)
    for others in (0.0, 5.0, 1.0, 0.0):
        cores.others = others
        assert all(1 <= threads <= most for threads in drive(governor, cores, 2))


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system does not tell who waits")
def test_linux_tells_of_threads_and_cores() -> None:
    cores = LinuxCores()
    before = cores.waits()
    assert str(os.getpid()) in before
    assert all(wait >= 0 for wait in before.values())
    assert all(wait >= before[thread] for thread, wait in cores.waits().items() if thread in before)
    assert cores.idle_s() >= 0
    assert cores.cpu_s() > 0
    trial = cores.try_core()
    while (had_core := trial()) is None:
        time.sleep(0.001)
    assert 0 < had_core <= 1
    assert cores.waits().keys() <= set(os.listdir("/proc/self/task"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def reduced(cores: FairCores) -> StepThreads:
    governor, cores.others = Governor(2, cores, cores.clock), 1.0
    drive(governor, cores, 0.2)
    assert governor.threads == 1
    return StepThreads(governor)


@pytest.mark.usefixtures("two_threads")
def test_torch_has_the_governed_threads_in_a_step_and_all_after_it(reduced: StepThreads) -> None:
    with reduced.computing(prompt_rows=0):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="broken"), reduced.computing(prompt_rows=0):
        raise ValueError("broken")
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("taken", "left"), [(0, 2), (1, 1), (5, 1)])
def test_cores_on_which_grammars_are_compiled_are_left_to_that(taken: int, left: int, cores: FairCores) -> None:
    with StepThreads(Governor(2, cores, cores.clock)).computing(prompt_rows=0, taken=taken):
        assert torch.get_num_threads() == left


@pytest.mark.usefixtures("two_threads")
def test_a_long_prompt_has_all_threads(reduced: StepThreads) -> None:
    with reduced.computing(prompt_rows=1000):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_that_torch_has_lost_elsewhere_are_not_given_back(reduced: StepThreads) -> None:
    torch.set_num_threads(1)
    with reduced.computing(prompt_rows=0):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("given", "granted", "expected"), [(None, 1, 1), (None, 2, 2), (None, 64, 2), ("2", 1, 2)])
def test_threads_follow_the_quota_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, granted: int, expected: int
) -> None:
    monkeypatch.setattr(module, "count_cores", lambda: granted)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    made = make_threads(torch.device("cpu"))
    assert torch.get_num_threads() == expected
    assert isinstance(made, StepThreads) == (expected > 1 and os.path.exists("/proc/self/schedstat"))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_a_system_that_does_not_tell_keeps_its_threads(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(module, "LinuxCores", fail)
    before = torch.get_num_threads()
    assert make_threads(torch.device("cpu")) is None
    assert torch.get_num_threads() == before


def test_a_gpu_is_left_alone() -> None:
    before = torch.get_num_threads()
    assert make_threads(torch.device("cuda")) is None
    assert torch.get_num_threads() == before
