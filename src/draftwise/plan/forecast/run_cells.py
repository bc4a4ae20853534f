"""A forecast next to a run's cells: which candidates need no measurement, and how far off the forecast was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Calibration,
    Comparison,
    Condition,
    Exactness,
    Expectation,
    Forecast,
    ForecastCell,
    HeldAgainst,
    Interval,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    SpecConfig,
)


def find_hopeless(
    expected: Sequence[Expectation], candidates: Iterable[str], *, num_cells: int, margin: float
) -> dict[str, str]:
    """Return the candidates that are not worth measuring, each with a clause that says why.

    In every cell, the interval of such a candidate ends below the start of the best one's, or below the smallest change
    worth making. A candidate without a forecast in some cell is always worth measuring. So is the most promising one:
    only a measurement can show that nothing pays.
    """
    best: dict[tuple[str, str], Expectation] = {}
    for each in expected:
        place = each.workload, each.load
        best[place] = max(best.get(place, each), each, key=lambda one: one.low)
    found: dict[str, str] = {}
    promise: dict[str, float] = {}
    for name in candidates:
        mine = [each for each in expected if each.candidate == name]
        if len(mine) < num_cells or not mine:
            continue
        promise[name] = sum(log(each.high) for each in mine)
        gaps = [_compare(each, best[each.workload, each.load], 1 + margin) for each in mine]
        nearest, why = max(gaps)
        if nearest < 0:
            found[name] = why
    if found.keys() >= set(candidates):
        found.pop(max(found, key=lambda name: promise[name]))
    return found


def _compare(mine: Expectation, best: Expectation, bar: float) -> tuple[float, str]:
    """Return how far a forecast reaches above what it has to reach (a logarithm), and that in words."""
    is_best = best.candidate != mine.candidate and best.low > bar
    limit = best.low if is_best else bar
    against = f"{best.candidate}'s {best.low:.2f}-{best.high:.2f}x" if is_best else f"{bar:.2f}x"
    span = f"{mine.low:.2f}-{mine.high:.2f}x" if mine.low > 0 else f"at most {mine.high:.2f}x"
    return log(mine.high / limit), f"its forecast of {span} on {mine.workload} at {mine.load} stays below {against}"


def is_config_of(spec: SpecConfig, other: SpecConfig) -> bool:
    """Return whether two configs use one drafter: apart from k, all keys that both have are equal."""
    one, two = spec.to_dict(), other.to_dict()
    return all(one[key] == two[key] for key in one.keys() & two.keys() - {"num_speculative_tokens"}) and (
        one.get("model") == two.get("model")
    )


def accept_everything(calibration: Calibration, temperatures: Iterable[float]) -> Profile:
    """Return a profile in which every draft token is accepted: its forecast is the maximum gain of a server."""
    entries = tuple(
        Acceptance(
            candidate=setting.spec,
            temperature=temperature,
            exactness=Exactness.LOWER_BOUND,
            requests=1,
            by_k={k: _accept_all(k) for k in range(1, setting.k + 1)},
        )
        for setting in calibration.candidates
        for temperature in temperatures
        if setting.spec is not None
    )
    log_read = ReplayedLog(rows=1, used=1, tokens_out=1)
    return Profile(target=ReplayedTarget(name=calibration.target), log=log_read, entries=entries)


def _accept_all(k: int) -> AcceptanceAtK:
    tokens = k + 1.0
    return AcceptanceAtK(
        steps=1,
        emitted=tokens,
        drafts=1,
        drafted=k,
        accepted=k,
        tokens_per_step=Interval(value=tokens, low=tokens, high=tokens),
        per_request=(tokens, tokens, tokens),
    )


def hold_against(cell: ForecastCell, comparison: Comparison) -> HeldAgainst:
    """Return a comparison with its forecast."""
    found, measured = cell.speedup, comparison.deciding
    return HeldAgainst(
        setting=comparison.candidate,
        workload=comparison.workload,
        load=comparison.condition.label,
        predicted=found.value,
        measured=measured.value,
        measured_low=measured.low,
        measured_high=measured.high,
        is_inside=found.low <= measured.value <= found.high,
        replayed_tokens_per_step=cell.tokens_per_step,
        counted_tokens_per_step=comparison.counters.tokens_per_step,
    )


def find_cell(made: Forecast, setting: str, k: int, workload: str, condition: Condition) -> ForecastCell | None:
    """Return a server's forecast for a workload, from the workload's own requests if the log has them."""
    same = [
        each
        for each in made.cells
        if (each.setting, each.k) == (setting, k)
        and (each.axis, each.load) == condition.place
        and each.temperature == condition.temperature
    ]
    return next((each for group in (workload, None) for each in same if each.group == group), None)
