"""Answers and turns as the JSON lines of a run directory, and back."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any

from draftwise.core import Answer, ClientHealth, Counters, ServerLoad, Timing, TurnRecord

__all__ = ["answer_to_row", "row_to_answer", "row_to_turn", "turn_to_row"]


def answer_to_row(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values (`asdict` would copy thousands of clock readings one by one)."""
    row = {each.name: getattr(answer, each.name) for each in fields(answer)}
    return row | {"timing": {each.name: getattr(answer.timing, each.name) for each in fields(Timing)}}


def row_to_answer(row: dict[str, Any]) -> Answer:
    """Return the answer that `answer_to_row` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    timing = row["timing"] | {"chunks": tuple((time, count) for time, count in row["timing"]["chunks"])}
    _check_clock(timing["sent"], timing["finished"])
    ids = {name: tuple(row[name]) for name in ("token_ids", "prompt_token_ids", "acceptance")}
    return Answer(**{**row, **ids, "timing": Timing(**timing)})


def turn_to_row(turn: TurnRecord) -> dict[str, Any]:
    """Return a turn as JSON values."""
    return asdict(turn)


def row_to_turn(row: dict[str, Any]) -> TurnRecord:
    """Return the turn that `turn_to_row` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    _check_clock(row["wall_s"], row["began_s"])
    parts = {
        "counters": Counters.from_dict(row["counters"]),
        "client": ClientHealth(**row["client"]),
        "before": ServerLoad(**row["before"]),
    }
    return TurnRecord(**{**row, **parts})


def _check_clock(*readings: float) -> None:
    if not all(map(math.isfinite, readings)):
        raise ValueError(f"no clock reads {readings}")
