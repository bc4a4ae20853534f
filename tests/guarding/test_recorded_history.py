"""The history of a service out of a Prometheus: rows of five minutes, several queries, gaps and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.web import serving_answers

from draftwise.core import BackendError
from draftwise.guarding import recorded_history
from draftwise.guarding.guard_state import Store
from draftwise.guarding.recorded_history import read_recorded
from draftwise.watching.drift import ROW_S, DriftRow
from draftwise.watching.prometheus import PrometheusApi

BEGAN = 1_700_000_100  # a multiple of 300


@contextmanager
def prometheus(asked: list[dict[str, str]]) -> Iterator[str]:
    """Yield the URL of one that has a hundred drafts in every five minutes, a gap and a restart."""

    def answer(path: str, headers: dict[str, str]) -> tuple[int, str]:
        given = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        asked.append(given)
        if "refused" in given["query"]:
            return 400, json.dumps({"status": "error", "error": "it is refused"})
        value = 0.0 if "resets" in given["query"] else 60.4 if "accepted" in given["query"] else 100.2
        times = range(int(given["start"]), int(given["end"]) + 1, int(given["step"]))
        values = [
            [at_s, str(1.0 if "resets" in given["query"] and at_s == BEGAN + 2 * ROW_S else value)]
            for at_s in times
            if at_s != BEGAN + 3 * ROW_S
        ]
        return 200, json.dumps({"status": "success", "data": {"result": [{"metric": {}, "values": values}]}})

    with serving_answers(answer) as url:
        yield url


def read(url: str, model: str | None = None) -> tuple[DriftRow, ...]:
    async def ask() -> tuple[DriftRow, ...]:
        api = PrometheusApi(url)
        try:
            return await read_recorded(api, model=model, begin_s=BEGAN - 1, end_s=BEGAN + 5 * ROW_S + 200)
        finally:
            api.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("steps", [10_000, 2])
def test_a_row_is_what_grew_in_its_five_minutes(monkeypatch, steps):
    monkeypatch.setattr(recorded_history, "_STEPS", steps)
    asked: list[dict[str, str]] = []
    with prometheus(asked) as url:
        rows = read(url, model='a"b')
    assert [(row.began_s - BEGAN) // ROW_S for row in rows] == [0, 1, 3, 4]  # what would end at 3 is not there
    assert {(row.drafts, row.accepted) for row in rows} == {(100, 60)}
    assert [row.usable for row in rows] == [True, False, True, True]
    assert all('model_name="a\\"b"' in each["query"] and each["step"] == "300" for each in asked)


def test_one_that_refuses_is_an_error():
    with prometheus([]) as url, pytest.raises(BackendError, match="it is refused"):
        read(url, model="refused")


def test_what_the_guard_saw_itself_counts(tmp_path):
    store = Store(tmp_path / "guard.json")
    own = DriftRow(began_s=600, drafts=7, accepted=1)
    store.add_row(own)
    store.add_older([DriftRow(began_s=began_s, drafts=1, accepted=1) for began_s in (300, 600, 900)])
    assert [(row.began_s, row.drafts) for row in store.read_rows()] == [(300, 1), (600, 7), (900, 1)]
    store.add_row(DriftRow(began_s=1200, drafts=2, accepted=1))
    assert len(store.read_rows()) == 4
