"""Loads on a virtual clock: what is in flight when, what is sent when, and what is told when something breaks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, pairwise

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.backends import BrokenStream, Exchange, Piece
from draftwise.core import (
    Answer,
    Arrivals,
    BackendError,
    ClientHealth,
    ClosedLoop,
    Condition,
    InvalidSetup,
    Load,
    OpenLoop,
    Phase,
    Prompt,
    Replay,
    StorageError,
)
from draftwise.measure.load.client import Client
from draftwise.measure.load.requests import arrival_times
from draftwise.measure.load.traffic import drive
from draftwise.runs.turn_order import Turn

SCRIPT = FakeScript(first_token_s=0.05, step_s=0.02, jitter=0.3)


class Watched(FakeBackend):
    """Knows when which request was in flight."""

    def __init__(self, script: FakeScript) -> None:
        super().__init__("a", script)
        self.spans: list[list[float]] = []
        self.breaks_at: int | None = None

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        if path != "/v1/completions":
            return await super().stream(path, body, received)
        if len(self.spans) == self.breaks_at:
            raise BrokenStream("gone")
        span = [self.now(), float("inf")]
        self.spans.append(span)
        try:
            return await super().stream(path, body, received)
        finally:
            span[1] = self.now()

    def in_flight(self, time: float) -> int:
        return sum(begin <= time < end for begin, end in self.spans)


@dataclass
class Driven:
    """What came of driving one turn."""

    backend: Watched
    answers: list[Answer] = field(default_factory=list)
    health: ClientHealth | None = None
    began: float = 0.0
    left: int = 0
    error: BaseException | None = None

    @property
    def measured(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.measured]

    @property
    def others(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.measured]


def make_turn(load: Load, count: int, tokens: int = 20, repeat: int = 1, block: int = 0) -> Turn:
    prompts = tuple(
        Prompt(id=f"p{i % 5}", text=f"prompt {i % 5}", max_tokens=tokens, arrival_s=i / 4) for i in range(count)
    )
    return Turn(
        number=3,
        arm="a",
        workload="w",
        repeat=repeat,
        block=block,
        prompts=prompts,
        copies=tuple(i // 5 for i in range(count)),
        condition=Condition(load=load),
    )


def run(
    turn: Turn,
    script: FakeScript = SCRIPT,
    *,
    prepare: Callable[[Watched], None] = lambda backend: None,
    on_answer: Callable[[Answer], None] = lambda answer: None,
    cancel_after: float | None = None,
) -> Driven:
    """Drive a turn on virtual time; what it raises is in the result."""

    async def talk() -> Driven:
        backend = Watched(script)
        await backend.start()
        client = await Client.greet(backend, Prompt(id="hello", text="hello", max_tokens=2), salt="s")
        del backend.spans[:]
        prepare(backend)
        driven = Driven(backend, began=backend.now())

        def keep(answer: Answer) -> None:
            on_answer(answer)
            driven.answers.append(answer)

        try:
            async with asyncio.timeout(cancel_after):
                driven.health = await drive(client, turn, seed=1, on_answer=keep)
        except Exception as error:
            driven.error = error
        await asyncio.sleep(0)
        driven.left = len(asyncio.all_tasks()) - 1
        return driven

    return virtual_time.run(talk(), limit_s=1000)


@pytest.mark.parametrize(("streams", "count"), [(2, 8), (8, 32), (8, 3)])
def test_as_many_are_in_flight_as_asked_whenever_a_measured_one_is(streams: int, count: int) -> None:
    driven = run(make_turn(ClosedLoop(concurrency=streams), count))
    assert len(driven.measured) == count
    spans = [(answer.timing.sent, answer.timing.finished) for answer in driven.measured]
    changes = sorted({time for span in driven.backend.spans for time in span})
    middles = [(a + b) / 2 for a, b in pairwise(changes)]
    during = [time for time in middles if any(begin < time < end for begin, end in spans)]
    assert during
    assert {driven.backend.in_flight(time) for time in during} == {streams}
    assert driven.backend.in_flight(changes[-1]) == 0, "background are withdrawn"


def test_every_request_is_told_once_under_its_own_name() -> None:
    driven = run(make_turn(ClosedLoop(concurrency=8), 32))
    names = [(answer.prompt_id, answer.copy) for answer in driven.answers]
    assert len(set(names)) == len(names) > 32
    assert {(a.prompt_id, a.copy) for a in driven.measured} == {(f"p{i % 5}", i // 5) for i in range(32)}


def test_streams_do_not_run_in_step() -> None:
    driven = run(make_turn(ClosedLoop(concurrency=8), 32), FakeScript(first_token_s=0.05, step_s=0.02))
    first = sorted(answer.timing.finished for answer in driven.others)[:8]
    assert min(b - a for a, b in pairwise(first)) > 0
    begins = sorted(answer.timing.sent for answer in driven.measured)[:8]
    assert min(b - a for a, b in pairwise(begins)) > 0


def test_the_tokens_of_withdrawn_requests_are_told() -> None:
    driven = run(make_turn(ClosedLoop(concurrency=4), 16))
    received = sum(answer.timing.num_tokens for answer in driven.answers)
    # The server has counted the greeting too: 2 tokens for each of its requests.
    generated = driven.backend.engine.counters.generation_tokens
    assert generated is not None
    assert received <= generated <= received + 2 * 2 + 4
    assert any(answer.finish_reason is None for answer in driven.others)


def test_one_stream_has_neither_lead_in_nor_fillers() -> None:
    driven = run(make_turn(ClosedLoop(concurrency=1), 3))
    assert len(driven.answers) == len(driven.measured) == len(driven.backend.spans) == 3
    assert [answer.prompt_id for answer in driven.answers] == ["p0", "p1", "p2"]


OPEN = [
    OpenLoop.steady(4.0),
    OpenLoop.steady(40.0, Arrivals.CONSTANT),
    OpenLoop(
        phases=(Phase(start_per_s=1, end_per_s=20, duration_s=3), Phase(start_per_s=2, end_per_s=2, duration_s=2))
    ),
]


@pytest.mark.parametrize("load", OPEN, ids=lambda load: load.label)
@pytest.mark.parametrize("script", [SCRIPT, FakeScript(step_s=0.3, max_running=2)], ids=["fast", "overloaded"])
def test_requests_are_sent_in_time_whatever_became_of_the_others(load: OpenLoop, script: FakeScript) -> None:
    turn = make_turn(load, 30)
    driven = run(turn, script)
    times = list(islice(arrival_times(load, seed=1, key=f"w/{load.label}/1/0"), 30))
    starts = sorted(answer.timing.start for answer in driven.measured)
    assert [start - starts[0] for start in starts] == pytest.approx([time - times[0] for time in times])
    assert 0 <= starts[0] - times[0] - driven.began < 0.1
    assert all(abs(answer.timing.send_lag_s) < 1e-9 for answer in driven.measured)
    assert driven.health is not None
    assert driven.health.send_lag_max_s < 1e-9


def test_a_stall_of_the_server_is_in_the_latencies_of_all_that_it_hit() -> None:
    """A client that waits with request until the stall is over would report one slow request."""
    load = OpenLoop.steady(10.0, Arrivals.CONSTANT)
    script = FakeScript(first_token_s=0.01, step_s=0.001, stalls=((1.0, 3.0),))
    driven = run(make_turn(load, 60, tokens=2), script)
    slow = sorted(answer.timing.ttft_s for answer in driven.measured if answer.timing.ttft_s > 0.05)
    assert len(slow) == pytest.approx(20, abs=2)
    gaps = [b - a for a, b in pairwise(slow)]
    assert gaps == pytest.approx([0.1] * len(gaps), abs=1e-6)


def test_the_load_goes_on_until_the_last_measured_answer_and_no_longer() -> None:
    driven = run(make_turn(OpenLoop.steady(20.0), 20, tokens=100))
    end = max(answer.timing.finished for answer in driven.measured)
    last_begin = max(begin for begin, _ in driven.backend.spans)
    assert end - 0.5 < last_begin <= end
    assert max(finish for _, finish in driven.backend.spans) == pytest.approx(end)


def test_arms_get_the_same_times_and_blocks_others() -> None:
    def starts(turn: Turn, script: FakeScript) -> list[float]:
        driven = run(turn, script)
        times = sorted(answer.timing.start for answer in driven.measured)
        return [time - times[0] for time in times]

    turn = make_turn(OpenLoop.steady(4.0), 10)
    plain = starts(turn, SCRIPT)
    assert starts(turn, FakeScript(step_s=0.1, k=3, accepted=(2,))) == pytest.approx(plain)
    for other in (make_turn(OpenLoop.steady(4.0), 10, block=1), make_turn(OpenLoop.steady(4.0), 10, repeat=2)):
        assert starts(other, SCRIPT) != pytest.approx(plain)


def test_a_recording_is_replayed_at_its_times() -> None:
    driven = run(make_turn(Replay(speed=2.0), 8))
    starts = sorted(answer.timing.start for answer in driven.answers)
    assert [start - starts[0] for start in starts] == pytest.approx([i / 8 for i in range(8)])
    assert not driven.others


def test_a_recording_without_times_is_refused() -> None:
    turn = make_turn(Replay(), 2)
    bare = tuple(Prompt(id=prompt.id, text="x", max_tokens=3) for prompt in turn.prompts)
    turn = Turn(number=0, arm="a", workload="w", repeat=1, prompts=bare, condition=turn.condition)
    assert isinstance(run(turn).error, InvalidSetup)


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=1), ClosedLoop(concurrency=4), OpenLoop.steady(20.0)])
def test_when_the_server_breaks_everything_that_had_ended_is_told(load: Load) -> None:
    def prepare(backend: Watched) -> None:
        backend.breaks_at = 12

    driven = run(make_turn(load, 30), prepare=prepare)
    assert isinstance(driven.error, BackendError)
    assert "gone" in str(driven.error)
    whole = [answer for answer in driven.answers if answer.finish_reason is not None]
    broke = max(end for _, end in driven.backend.spans)
    ended = [span for span in driven.backend.spans if span[1] < broke]
    assert len(whole) >= len(ended) > 0
    assert driven.left == 0


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=1), ClosedLoop(concurrency=4), OpenLoop.steady(20.0)])
def test_cancelling_withdraws_everything_and_tells_what_had_ended(load: Load) -> None:
    driven = run(make_turn(load, 100), cancel_after=3.3)
    assert isinstance(driven.error, TimeoutError)
    assert driven.measured
    assert driven.left == 0
    assert max(end for _, end in driven.backend.spans) == pytest.approx(driven.began + 3.3)


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=4), OpenLoop.steady(20.0)])
def test_refusals_are_answers_and_a_refusing_server_is_not_hammered(load: Load) -> None:
    driven = run(make_turn(load, 10), FakeScript(first_token_s=0.1, step_s=0.1, max_running=1, max_waiting=1))
    assert len(driven.measured) == 10
    if not isinstance(load, ClosedLoop):
        assert [answer.error for answer in driven.measured if answer.error is not None]
    else:
        assert not any(answer.error for answer in driven.measured)
        assert not any(answer.error for answer in driven.others)
        # Ten answers take 5 s on this server; the two streams that it has no place for come back at ever longer pauses.
        assert len(driven.backend.spans) <= 4 + 10 + 4 + len(driven.others) + 2 * 6


@pytest.mark.parametrize("load", [ClosedLoop(concurrency=4), OpenLoop.steady(20.0)])
def test_an_answer_that_cannot_be_kept_ends_the_turn(load: Load) -> None:
    def on_answer(answer: Answer) -> None:
        raise StorageError("disk full")

    driven = run(make_turn(load, 30), on_answer=on_answer)
    assert isinstance(driven.error, StorageError)
    assert driven.left == 0


def test_a_turn_of_nothing_ends() -> None:
    for load in (ClosedLoop(concurrency=1), ClosedLoop(concurrency=4), OpenLoop.steady(2.0)):
        driven = run(make_turn(load, 0))
        assert (driven.answers, driven.error) == ([], None)
