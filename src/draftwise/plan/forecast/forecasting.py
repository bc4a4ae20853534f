"""The expected speed-up of speculation from a replay's acceptance, a calibration's steps and a load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    CalibratedSetting,
    Calibration,
    Finding,
    Forecast,
    ForecastCell,
    ForecastCrossover,
    Interval,
    Profile,
)
from draftwise.core.finding import join_names
from draftwise.knowledge.messages import fault, refusal, warning
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.calibrated_server import CalibratedServer, find_waiting, match_settings
from draftwise.plan.service import RequestLengths, Service, Waiting, serve_concurrency, serve_rate

_SERVING_SD = 0.04
"""Standard deviation of a speed-up's logarithm from all that is no step, until forecasts were held against runs."""
_SERVING_WEIGHT = 8
"""How many such comparisons that counts for."""
_TO_90, _TO_95 = 1.645, 1.96
_REACH = 2.0
"""How many times as many sequences as were calibrated a forecast may look at."""
_MOST_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """A load on one of the axes."""

    axis: str
    load: float


def forecast(
    profile: Profile,
    calibration: Calibration,
    *,
    concurrency: Sequence[float] = (1, 2, 4, 8, 16, 32, 64, 128),
    rates: Sequence[float] = (),
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
) -> Forecast:
    """Return the forecast for every calibrated server at every replayed k, under each load.

    Args:
        profile: acceptance on the traffic, from `draftwise replay`.
        calibration: step times of the servers, from `draftwise calibrate`.
        concurrency: requests in flight.
        rates: requests per second, sent without waiting for answers.
        prompt_tokens: mean tokens per prompt; None for the log's median.
        output_tokens: mean tokens per answer; None for the log's mean.

    Raises:
        InvalidSetup: no server of the calibration was replayed, or the lengths of requests are unknown.
    """
    costs = CalibratedCosts(calibration)
    traffic = _read_traffic(profile, prompt_tokens, output_tokens)
    matched = match_settings(profile, calibration)
    if not matched:
        calibrated = join_names(each.name for each in calibration.candidates)
        replayed = join_names(dict.fromkeys(each.candidate.label for each in profile.entries))
        raise refusal("no-common-candidate", case="forecast", calibrated=calibrated, replayed=replayed)
    waits = {
        name: find_waiting(costs, name) for name in (costs.calibration.plain.name, *(each.name for each, _ in matched))
    }
    places = [*(_Place("concurrency", load) for load in concurrency), *(_Place("rate", load) for load in rates)]
    serving = _find_serving_sd(calibration)
    rows = tuple(
        row
        for setting, entry in matched
        for k, found in entry.by_k.items()
        if k <= setting.k
        for row in _forecast_all(costs, setting, entry, (k, found), places, traffic, waits, serving)
    )
    return Forecast(
        target=calibration.target,
        prompt_tokens=traffic.prompt_tokens,
        output_tokens=traffic.output_tokens,
        cells=rows,
        crossovers=find_crossovers(rows),
        errors={"serving": serving, "step, left out": costs.left_out_error()},
        findings=tuple(find_doubts(profile, calibration, matched, rows)),
    )


def _read_traffic(profile: Profile, prompt_tokens: float | None, output_tokens: float | None) -> RequestLengths:
    log = profile.log
    prompt = prompt_tokens if prompt_tokens is not None else (log.prompt_tokens[1] if log.prompt_tokens else None)
    output = output_tokens if output_tokens is not None else (log.tokens_out / log.used if log.used else None)
    if prompt is None or output is None:
        raise refusal("lengths-unknown")
    return RequestLengths(prompt_tokens=prompt, output_tokens=output)


def _forecast_all(
    costs: CalibratedCosts,
    setting: CalibratedSetting,
    entry: Acceptance,
    at: tuple[int, AcceptanceAtK],
    places: Iterable[_Place],
    traffic: RequestLengths,
    waits: Mapping[str, Waiting],
    serving_sd: float,
) -> Iterator[ForecastCell]:
    """Yield what is expected of a server at one k, load by load; loads that it or the baseline cannot keep up with are
    left out."""
    k, found = at
    context = traffic.prompt_tokens + traffic.output_tokens / 2
    drafted = min(float(k), found.drafted / found.steps) if found.steps else 0.0
    server = CalibratedServer(costs, setting.name, k, context=context, drafted=drafted)
    plain = CalibratedServer(costs, costs.calibration.plain.name, 0, context=context)
    length = found.tokens_per_step
    for place in places:
        tokens = _tokens_per_step(found, place)
        room, base_room = (_find_room(costs.calibration, each, traffic) for each in (setting, costs.calibration.plain))
        mine = _serve(server, traffic, tokens, place, room, waits[setting.name])
        base = _serve(plain, traffic, 1.0, place, base_room, waits[plain.setting])
        if mine is None or base is None:
            continue
        steps = costs.predict([server.step(mine.batch), plain.step(base.batch)]).covariance
        variance = steps[0, 0] + steps[1, 1] - 2 * steps[0, 1]
        spread = math.sqrt(max(0.0, float(variance)) + serving_sd**2 + _acceptance_sd(length) ** 2)
        ratio = _speed_up(place, mine, base, traffic)
        yield ForecastCell(
            setting=setting.name,
            k=k,
            group=entry.group,
            temperature=entry.temperature,
            axis=place.axis,
            load=place.load,
            tokens_per_step=tokens,
            batch=mine.batch,
            step_ms=1e3 * mine.step_s,
            plain_step_ms=1e3 * base.step_s,
            speedup=_spread(ratio, _TO_90 * spread),
            tpot_ms=1e3 * mine.tpot_s,
            plain_tpot_ms=1e3 * base.tpot_s,
            ttft_ratio=mine.ttft_s / base.ttft_s,
            tokens_per_s=mine.tokens_per_s,
            is_extrapolated=mine.batch > _REACH * costs.reach(setting.name),
        )


def _serve(
    server: CalibratedServer,
    traffic: RequestLengths,
    tokens_per_step: float,
    place: _Place,
    room: float,
    waiting: Waiting,
) -> Service | None:
    if place.axis == "concurrency":
        return serve_concurrency(server, traffic, tokens_per_step, min(place.load, room), waiting=waiting)
    return serve_rate(server, traffic, tokens_per_step, place.load, most=room)


def _tokens_per_step(found: AcceptanceAtK, place: _Place) -> float:
    """Return what decides: where one request is in flight that of a typical request, as `decide` has it, else that of
    all steps together."""
    alone = place.axis == "concurrency" and place.load == 1
    return found.typical if alone and found.typical is not None else found.tokens_per_step.value


def _speed_up(place: _Place, mine: Service, base: Service, traffic: RequestLengths) -> float:
    """Return the ratio that decides: what the server puts out where requests wait for it, else how long one takes."""
    if place.axis == "concurrency":
        return mine.tokens_per_s / base.tokens_per_s
    tokens = max(1.0, traffic.output_tokens - 1)
    return (base.ttft_s + tokens * base.tpot_s) / (mine.ttft_s + tokens * mine.tpot_s)


def _spread(ratio: float, logarithm: float) -> Interval:
    return Interval(value=ratio, low=ratio * math.exp(-logarithm), high=ratio * math.exp(logarithm))


def _find_room(calibration: Calibration, setting: CalibratedSetting, traffic: RequestLengths) -> float:
    """Return how many sequences a server decodes at once: of its settings, and of its memory where that is known."""
    given = calibration.args.get("max_num_seqs")
    most = float(given) if isinstance(given, int) and given > 0 else float(_MOST_SEQUENCES)
    if setting.kv_tokens is None:
        return most
    return max(1.0, min(most, setting.kv_tokens / (traffic.prompt_tokens + traffic.output_tokens)))


def _acceptance_sd(length: Interval) -> float:
    """Return the standard deviation of the logarithm of the tokens a step, of a 95 % interval."""
    return math.log(length.high / length.low) / (2 * _TO_95) if length.low > 0 else 1.0


def _find_serving_sd(calibration: Calibration) -> float:
    """Return how far off forecasts were beyond what is known of steps and acceptance. The prior's share falls."""
    errors = np.log1p([each.error for each in calibration.held]) if calibration.held else np.zeros(0)
    return math.sqrt((_SERVING_WEIGHT * _SERVING_SD**2 + float(errors @ errors)) / (_SERVING_WEIGHT + len(errors)))


def find_crossovers(rows: Sequence[ForecastCell]) -> tuple[ForecastCrossover, ...]:
    """Return where the speed-up of each server and k falls to 1, on each axis with at least two loads."""
    found = []
    for sweep, each in groupby(sorted(rows, key=_sweep_of), key=_sweep_of):
        line = sorted(each, key=lambda row: row.load)
        if len(line) > 1:
            setting, k, group, temperature, axis = sweep
            ends = [_find_end(line, part) for part in (_value, _low, _high)]
            found.append(
                ForecastCrossover(
                    setting=setting,
                    k=k,
                    group=group or None,
                    temperature=temperature,
                    axis=axis,
                    value=ends[0] if 0 < ends[0] < math.inf else None,
                    low=ends[1],
                    high=ends[2],
                )
            )
    return tuple(found)


def _sweep_of(row: ForecastCell) -> tuple[str, int, str, float, str]:
    return row.setting, row.k, row.group or "", row.temperature, row.axis


def _value(row: ForecastCell) -> float:
    return row.speedup.value


def _low(row: ForecastCell) -> float:
    return row.speedup.low


def _high(row: ForecastCell) -> float:
    return row.speedup.high


def _find_end(line: Sequence[ForecastCell], part: Callable[[ForecastCell], float]) -> float:
    """Return the load at which a line first falls below 1. 0 where it begins there, infinity where it never does."""
    if part(line[0]) < 1:
        return 0.0
    for before, after in pairwise(line):
        if part(after) < 1:
            fallen = math.log(part(before)) / math.log(part(before) / part(after))
            return float(before.load * (after.load / before.load) ** fallen)
    return math.inf


def find_doubts(
    profile: Profile,
    calibration: Calibration,
    matched: Sequence[tuple[CalibratedSetting, Acceptance]],
    rows: Sequence[ForecastCell],
) -> Iterator[Finding]:
    """Yield assumptions of the forecast that may not hold."""
    if left := [each.name for each in calibration.candidates if each.name not in {one.name for one, _ in matched}]:
        yield warning("not-replayed", names=join_names(left))
    if far := [row for row in rows if row.is_extrapolated]:
        first = min(far, key=lambda row: row.load)
        yield fault("far-from-calibrated", axis=first.axis, load=first.load, setting=first.setting)
    if profile.target.name and calibration.target and not _same_model(profile.target.name, calibration.target):
        yield warning("two-models", name=profile.target.name, target=calibration.target)


def _same_model(one: str, other: str) -> bool:
    return one.rstrip("/").rpartition("/")[2].lower() == other.rstrip("/").rpartition("/")[2].lower()
