"""Reads the history that a Prometheus recorded before the guard started, as rows for judging drift."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from draftwise.watching.drift import ROW_S, DriftRow
from draftwise.watching.prometheus import PrometheusApi, Selection, Series, select

_STEPS = 10_000
"""Steps per query. Prometheus rejects more than 11,000."""


async def read_recorded(api: PrometheusApi, *, model: str | None, begin_s: float, end_s: float) -> tuple[DriftRow, ...]:
    """Return a row for every five minutes with recorded data.

    Args:
        api: connection to Prometheus.
        model: label `model_name` of the service. None: the only one.
        begin_s: seconds since the epoch; the first row begins at or shortly after it.
        end_s: the last row ends at or shortly before it.

    Raises:
        BackendError: Prometheus does not answer, or rejects the query.
    """
    drafts, accepted = (select(Selection(model=model), {name}) for name in ("num_drafts", "num_accepted_tokens"))
    rows: list[DriftRow] = []
    for start_s, stop_s in _split(begin_s, end_s):
        values = [
            _read_values(await api.query_range(query, start_s=start_s, end_s=stop_s, step_s=ROW_S))
            for query in (
                f"sum(increase({drafts}[{ROW_S}s]))",
                f"sum(increase({accepted}[{ROW_S}s]))",
                f"sum(resets({drafts}[{ROW_S}s]))",
            )
        ]
        rows += _join(*values)
    return tuple(rows)


def _split(begin_s: float, end_s: float) -> Iterator[tuple[int, int]]:
    """Yield the ends of the first and the last row of each query."""
    first, last = (int(-(-begin_s // ROW_S)) + 1) * ROW_S, int(end_s // ROW_S) * ROW_S
    for start_s in range(first, last + 1, _STEPS * ROW_S):
        yield start_s, min(start_s + (_STEPS - 1) * ROW_S, last)


def _read_values(series: Iterable[Series]) -> Mapping[int, float]:
    """Return values by the time at which they end."""
    return {int(float(at_s)): float(value) for each in series for at_s, value in each["values"]}


def _join(
    drafts: Mapping[int, float], accepted: Mapping[int, float], resets: Mapping[int, float]
) -> Iterator[DriftRow]:
    for end_s in sorted(drafts.keys() & accepted.keys()):
        yield DriftRow(
            began_s=end_s - ROW_S,
            drafts=round(drafts[end_s]),
            accepted=round(accepted[end_s]),
            usable=not resets.get(end_s, 0.0),
        )
