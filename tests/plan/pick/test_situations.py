"""Forty situations with what an expert answers and why: written from the evidence, before the code was asked.

`situations.json` holds them; a situation is signed where nothing of the answer contradicts the expert's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftwise.verbs.pick import CandidateRow, PickResult, pick

SITUATIONS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "situations.json").read_text("utf-8"))
SIGNED = 36
SHORT = 500


def answer(ask: dict[str, Any]) -> PickResult:
    return pick(**ask)


def codes(result: PickResult) -> set[str]:
    said = [*(each.code for each in result.against)]
    for row in result.ranked:
        said += [finding.code for finding in (*row.reasons, *row.caveats)]
    return set(said)


def speedup(row: CandidateRow) -> float | None:
    return None if row.estimate is None else row.estimate.speedup


Rows = dict[str, CandidateRow]


def span(rows: Rows, method: str) -> tuple[float, float]:
    row = rows.get(method)
    found = None if row is None or row.estimate is None else row.estimate.speedup_range
    return found or (float("inf"), float("-inf"))


def between(found: float | None, limits: list[float]) -> bool:
    return found is not None and limits[0] <= found <= limits[1]


def drafted(rows: Rows, method: str) -> float | None:
    row = rows.get(method)
    return None if row is None or row.estimate is None else row.estimate.k


def gain(rows: Rows, method: str) -> float | None:
    return speedup(rows[method]) if method in rows else None


def falls(ask: dict[str, Any], rows: Rows, method: str) -> bool:
    short = gain({row.method: row for row in answer({**ask, "prompt_tokens": SHORT}).ranked}, method)
    here = gain(rows, method)
    return here is not None and short is not None and here <= 0.9 * short


def looks_up_one_length(row: CandidateRow) -> bool:
    spec = {} if row.speculative_config is None else row.speculative_config.to_dict()
    return "prompt_lookup_min" in spec and spec["prompt_lookup_min"] == spec["prompt_lookup_max"]


def is_off(result: PickResult) -> bool:
    return result.exit_code == 1 or any(each.code == "nothing-pays" for each in result.against)


def first(result: PickResult) -> str:
    return result.ranked[0].method if result.ranked else ""


AGREES: dict[str, Callable[[dict[str, Any], Any, PickResult, Rows], bool]] = {
    "off": lambda _, __, result, ___: is_off(result),
    "none": lambda _, __, ___, rows: not rows,
    "sentence_lacks": lambda _, wanted, result, __: wanted not in result.sentence,
    "first": lambda _, wanted, result, __: first(result) in wanted and not result.exit_code,
    "not_first": lambda _, wanted, result, __: first(result) not in wanted,
    "ranked": lambda _, wanted, __, rows: set(wanted) <= set(rows),
    "refused": lambda _, wanted, __, rows: set(wanted).isdisjoint(rows),
    "says": lambda _, wanted, result, __: set(wanted) <= codes(result),
    "no_numbers": lambda _, __, ___, rows: not any(map(speedup, rows.values())),
    "most_gain": lambda _, wanted, __, rows: all((speedup(row) or 0) <= wanted for row in rows.values()),
    "lookup": lambda _, __, ___, rows: not any(map(looks_up_one_length, rows.values())),
    "gain": lambda _, wanted, __, rows: all(between(gain(rows, each), limits) for each, limits in wanted.items()),
    "k": lambda _, wanted, __, rows: all(between(drafted(rows, each), limits) for each, limits in wanted.items()),
    "uncertain": lambda _, wanted, __, rows: all(span(rows, each)[0] < 1 for each in wanted),
    "uncertain_width": lambda _, wanted, __, rows: all(
        span(rows, each)[1] >= 1.15 * span(rows, each)[0] for each in wanted
    ),
    "below_short": lambda ask, wanted, __, rows: all(falls(ask, rows, each) for each in wanted),
}
"""What an expert says -> whether an answer agrees."""


def judge(ask: dict[str, Any], expert: dict[str, Any], result: PickResult) -> Iterator[str]:
    """Yield where an answer contradicts the expert's."""
    rows = {row.method: row for row in result.ranked}
    for key, wanted in expert.items():
        if not AGREES[key](ask, wanted, result, rows):
            shown = {row.method: speedup(row) for row in result.ranked}
            yield f"{key} {wanted}: {result.sentence} {shown}"


@cache
def verdicts() -> dict[str, list[str]]:
    return {each["id"]: [*judge(each["ask"], each["expert"], answer(each["ask"]))] for each in SITUATIONS}


def test_the_situations_are_forty_and_each_says_why() -> None:
    assert len({each["id"] for each in SITUATIONS}) == len(SITUATIONS) == 40
    assert all(each["why"] and each["expert"] for each in SITUATIONS)


def test_an_expert_signs_nine_of_ten_answers() -> None:
    refused = {name: faults for name, faults in verdicts().items() if faults}
    assert len(SITUATIONS) - len(refused) >= SIGNED, json.dumps(refused, indent=1)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("first", ["medusa"]), ("gain", {"eagle3": [9, 10]}), ("refused", ["eagle3"]), ("off", True), ("says", ["x"])],
)
def test_an_answer_that_contradicts_the_expert_is_not_signed(key: str, wrong: Any) -> None:
    ask = SITUATIONS[0]["ask"]
    assert [*judge(ask, {key: wrong}, answer(ask))]
