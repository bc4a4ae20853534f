"""Requests that keep the load up: under names of their own, of staggered lengths, and of no use to what is measured."""

from itertools import islice

import pytest

from draftwise.core import Prompt
from draftwise.measure.load.sendings import at, measured, unmeasured
from draftwise.measure.load.traffic import Share
from draftwise.runs.schedule import Turn

PROMPTS = tuple(Prompt(id=f"p{i}", text=f"{i}", max_tokens=10) for i in range(5))
TURN = Turn(number=0, arm="a", workload="w", repeat=1, prompts=PROMPTS + PROMPTS[:2], copies=(0, 0, 0, 0, 0, 1, 1))


def test_no_name_occurs_twice() -> None:
    sendings = [*measured(TURN), *islice(unmeasured(TURN, 12), 40)]
    assert len({(sending.prompt.id, sending.copy) for sending in sendings}) == len(sendings) == 47
    assert [sending.measured for sending in sendings] == [True] * 7 + [False] * 40


def test_lead_ins_end_one_after_another() -> None:
    lead_ins = list(islice(unmeasured(TURN, 4), 4))
    assert [sending.prompt.max_tokens for sending in lead_ins] == [3, 5, 8, 10]
    assert len({sending.prompt.max_tokens for sending in islice(unmeasured(TURN, 10), 10)}) == 10
    assert all(sending.prompt.max_tokens >= 1 for sending in islice(unmeasured(TURN, 500), 500))


def test_lead_ins_take_what_is_measured_last_and_fillers_what_was_first() -> None:
    sendings = list(islice(unmeasured(TURN, 2), 5))
    assert [sending.prompt.id for sending in sendings] == ["p1", "p0", "p0", "p1", "p2"]
    assert [sending.prompt.max_tokens for sending in sendings[2:]] == [10, 10, 10]


def test_processes_share_everything_and_nothing_twice() -> None:
    parts = [list(Share(number=number, of=3).part(iter(range(20)))) for number in range(3)]
    assert sorted(each for part in parts for each in part) == list(range(20))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_times_count_from_the_begin() -> None:
    timed = list(at(measured(TURN), [0.0, 0.5], began=10.0))
    assert [sending.intended for sending in timed] == pytest.approx([10.0, 10.5])
