"""Requests that keep the load up: under names of their own, of staggered lengths, and of no use to what is measured."""

from dataclasses import replace
from itertools import islice

import pytest

from draftwise.core import Prompt
from draftwise.measure.load.requests import background_requests, fill_streams, measured_requests, set_times
from draftwise.measure.load.traffic import Share
from draftwise.runs.turn_order import Turn

PROMPTS = tuple(Prompt(id=f"p{i}", text=f"{i}", max_tokens=10) for i in range(5))
TURN = Turn(number=0, arm="a", workload="w", repeat=1, prompts=PROMPTS + PROMPTS[:2], copies=(0, 0, 0, 0, 0, 1, 1))


def test_no_name_occurs_twice() -> None:
    requests = [*measured_requests(TURN), *islice(background_requests(TURN, 12), 40)]
    assert len({(request.prompt.id, request.copy) for request in requests}) == len(requests) == 47
    assert [request.measured for request in requests] == [True] * 7 + [False] * 40


def test_ramp_up_requests_end_one_after_another() -> None:
    ramp_up = list(islice(background_requests(TURN, 4), 4))
    assert [request.prompt.max_tokens for request in ramp_up] == [3, 5, 8, 10]
    assert len({request.prompt.max_tokens for request in islice(background_requests(TURN, 10), 10)}) == 10
    assert all(request.prompt.max_tokens >= 1 for request in islice(background_requests(TURN, 500), 500))


def test_ramp_up_takes_what_is_measured_last_and_background_what_was_first() -> None:
    requests = list(islice(background_requests(TURN, 2), 5))
    assert [request.prompt.id for request in requests] == ["p1", "p0", "p0", "p1", "p2"]
    assert [request.prompt.max_tokens for request in requests[2:]] == [10, 10, 10]


def test_prompts_of_their_own_are_sent_once_and_no_more() -> None:
    turn = replace(TURN, prompts=PROMPTS[:2], copies=(), background=PROMPTS[2:])
    requests = list(background_requests(turn, 2))
    assert [request.prompt.id for request in requests] == ["p2", "p3", "p4"]
    assert [request.prompt.max_tokens for request in requests] == [5, 10, 10]
    assert [request.copy for request in requests] == [0, 0, 0]


def test_streams_are_full_until_the_last_measured_answer() -> None:
    """Two streams after ramp-ups of 5 and 10 tokens; an answer of 50 that comes last has two of 10 and 50 beside it."""
    assert fill_streams(TURN, 2, lambda prompt: prompt.max_tokens) == (10, 45)
    assert fill_streams(TURN, 2, lambda prompt: 50 if prompt.id == "p1" else 10) == (11, 130)


def test_processes_share_everything_and_nothing_twice() -> None:
    parts = [list(Share(number=number, of=3).part(iter(range(20)))) for number in range(3)]
    assert sorted(each for part in parts for each in part) == list(range(20))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_times_count_from_the_start() -> None:
    timed = list(set_times(measured_requests(TURN), [0.0, 0.5], began=10.0))
    assert [request.intended for request in timed] == pytest.approx([10.0, 10.5])
