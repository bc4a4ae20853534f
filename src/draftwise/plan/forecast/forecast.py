"""What speculation is expected to be worth: a replay's acceptance, a calibration's steps and a load taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    CalibratedSetting,
    Calibration,
    Finding,
    Forecast,
    ForecastCell,
    Interval,
    InvalidSetup,
    Profile,
    Severity,
)
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.cost.machine import Step
from draftwise.plan.forecast.crossovers import find_crossovers
from draftwise.plan.service.little import Service, Traffic, serve_concurrency, serve_rate

__all__ = ["Server", "forecast", "match_settings"]

_SERVING_SD = 0.04
"""Of the logarithm of a speed-up: what a service has beside its steps, until forecasts were held against runs."""
_SERVING_WEIGHT = 8
"""How many such comparisons that counts for."""
_TO_90, _TO_95 = 1.645, 1.96
_REACH = 2.0
"""How many times as many sequences as were calibrated a forecast may look at."""
_MOST_SEQUENCES = 256


class Server:
    """The steps of a calibrated server at one draft length, on one kind of traffic.

    Args:
        costs: what is known of its steps.
        setting: its name.
        k: most tokens that it drafts; 0 for the baseline.
        context: mean length of the sequences, in tokens.
        drafted: mean draft tokens a sequence; None for k.
    """

    def __init__(
        self, costs: CalibratedCosts, setting: str, k: int, *, context: float, drafted: float | None = None
    ) -> None:
        self._costs, self.setting, self.k, self._context, self._drafted = costs, setting, k, context, drafted
        self._seconds = cache(self._compute)

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """Return the seconds of a step."""
        return self._seconds(float(f"{sequences:.3g}"), prefill_tokens)

    def step(self, sequences: float) -> Step:
        """Return a step that only decodes."""
        return self._costs.step(self.setting, self.k, sequences=sequences, context=self._context, drafted=self._drafted)

    def _compute(self, sequences: float, prefill_tokens: float) -> float:
        step = self._costs.step(
            self.setting,
            self.k,
            sequences=sequences,
            context=self._context,
            drafted=self._drafted,
            prefill_tokens=prefill_tokens,
        )
        return self._costs.model.seconds(step)


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
    """Return what is expected of every calibrated server at every k that was replayed, under each load.

    Args:
        profile: what `draftwise replay` found on the traffic.
        calibration: what `draftwise calibrate` measured on the servers.
        concurrency: requests in flight.
        rates: requests a second, of arrivals that wait for nothing.
        prompt_tokens: of a request, in the mean; None for the log's median.
        output_tokens: of an answer; None for the log's mean.

    Raises:
        InvalidSetup: no server of the calibration was replayed, or the lengths of requests are not known.
    """
    costs = CalibratedCosts(calibration)
    traffic = _read_traffic(profile, prompt_tokens, output_tokens)
    matched = match_settings(profile, calibration)
    if not matched:
        raise InvalidSetup.because(
            "no-common-candidate",
            f"The calibration has {_list(each.name for each in calibration.candidates)}, and the profile "
            f"{_list(each.candidate.label for each in profile.entries)}: no candidate is in both.",
            where="calibration",
            fix="Replay and calibrate the same candidates.",
        )
    places = [*(_Place("concurrency", load) for load in concurrency), *(_Place("rate", load) for load in rates)]
    serving = _find_serving_sd(calibration)
    rows = tuple(
        row
        for setting, entry in matched
        for k, found in entry.by_k.items()
        if k <= setting.k
        for row in _forecast_all(costs, setting, entry, (k, found), places, traffic, serving)
    )
    return Forecast(
        target=calibration.target,
        prompt_tokens=traffic.prompt_tokens,
        output_tokens=traffic.output_tokens,
        cells=rows,
        crossovers=find_crossovers(rows),
        errors={"serving": serving, "step, left out": costs.left_out_error()},
        findings=tuple(_find_doubts(profile, calibration, matched, rows)),
    )


def match_settings(profile: Profile, calibration: Calibration) -> list[tuple[CalibratedSetting, Acceptance]]:
    """Return the calibrated servers with what was replayed of them, by temperature and group.

    A server that tells its resolved config may have more keys than what was replayed: where a method is calibrated
    once and replayed in one form, they are the same.
    """
    found = []
    for setting in calibration.candidates:
        assert setting.spec is not None
        method = setting.spec.method
        same = [each for each in profile.entries if _without_k(each) == _strip(setting.spec.to_dict())]
        if not same and sum(each.spec is not None and each.spec.method == method for each in calibration.settings) == 1:
            alike = [each for each in profile.entries if each.method == method]
            same = alike if len({str(sorted(_without_k(each).items())) for each in alike}) == 1 else []
        found += [(setting, each) for each in same]
    return found


def _without_k(entry: Acceptance) -> dict[str, object]:
    return _strip(entry.candidate.to_dict())


def _strip(spec: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in spec.items() if key != "num_speculative_tokens"}


def _read_traffic(profile: Profile, prompt_tokens: float | None, output_tokens: float | None) -> Traffic:
    log = profile.log
    prompt = prompt_tokens if prompt_tokens is not None else (log.prompt_tokens[1] if log.prompt_tokens else None)
    output = output_tokens if output_tokens is not None else (log.tokens_out / log.used if log.used else None)
    if prompt is None or output is None:
        raise InvalidSetup.because(
            "lengths-unknown",
            "The profile does not say how long prompts and answers are.",
            where="--prompt-tokens",
            fix="Give --prompt-tokens and --output-tokens.",
        )
    return Traffic(prompt_tokens=prompt, output_tokens=output)


def _forecast_all(
    costs: CalibratedCosts,
    setting: CalibratedSetting,
    entry: Acceptance,
    at: tuple[int, AcceptanceAtK],
    places: Iterable[_Place],
    traffic: Traffic,
    serving_sd: float,
) -> Iterator[ForecastCell]:
    """Yield what is expected of a server at one k, load by load; loads that it or the baseline cannot keep up with are
    left out."""
    k, found = at
    context = traffic.prompt_tokens + traffic.output_tokens / 2
    drafted = min(float(k), found.drafted / found.steps) if found.steps else 0.0
    server = Server(costs, setting.name, k, context=context, drafted=drafted)
    plain = Server(costs, costs.calibration.plain.name, 0, context=context)
    length = found.tokens_per_step
    for place in places:
        mine = _serve(server, traffic, length.value, place, _find_room(costs.calibration, setting, traffic))
        base = _serve(plain, traffic, 1.0, place, _find_room(costs.calibration, costs.calibration.plain, traffic))
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
            tokens_per_step=length.value,
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


def _serve(server: Server, traffic: Traffic, tokens_per_step: float, place: _Place, room: float) -> Service | None:
    if place.axis == "concurrency":
        return serve_concurrency(server, traffic, tokens_per_step, min(place.load, room))
    return serve_rate(server, traffic, tokens_per_step, place.load, most=room)


def _speed_up(place: _Place, mine: Service, base: Service, traffic: Traffic) -> float:
    """Return the ratio that decides: what the server puts out where requests wait for it, else how long one takes."""
    if place.axis == "concurrency":
        return mine.tokens_per_s / base.tokens_per_s
    tokens = max(1.0, traffic.output_tokens - 1)
    return (base.ttft_s + tokens * base.tpot_s) / (mine.ttft_s + tokens * mine.tpot_s)


def _spread(ratio: float, logarithm: float) -> Interval:
    return Interval(value=ratio, low=ratio * math.exp(-logarithm), high=ratio * math.exp(logarithm))


def _find_room(calibration: Calibration, setting: CalibratedSetting, traffic: Traffic) -> float:
    """Return how many sequences a server decodes at once: of its settings, and of its memory where that is known."""
    given = calibration.args.get("max_num_seqs")
    most = float(given) if isinstance(given, int) else float(_MOST_SEQUENCES)
    if setting.kv_tokens is None:
        return most
    return max(1.0, min(most, setting.kv_tokens / (traffic.prompt_tokens + traffic.output_tokens)))


def _acceptance_sd(length: Interval) -> float:
    """Return the standard deviation of the logarithm of the tokens a step, of a 95 % interval."""
    return math.log(length.high / length.low) / (2 * _TO_95) if length.low > 0 else 1.0


def _find_serving_sd(calibration: Calibration) -> float:
    """Return how far off forecasts were beyond what is known of steps and acceptance; the prior's share falls."""
    errors = np.log1p([each.error for each in calibration.held]) if calibration.held else np.zeros(0)
    return math.sqrt((_SERVING_WEIGHT * _SERVING_SD**2 + float(errors @ errors)) / (_SERVING_WEIGHT + len(errors)))


def _find_doubts(
    profile: Profile,
    calibration: Calibration,
    matched: Sequence[tuple[CalibratedSetting, Acceptance]],
    rows: Sequence[ForecastCell],
) -> Iterator[Finding]:
    """Yield what the forecast rests on that may not hold."""
    if left := [each.name for each in calibration.candidates if each.name not in {one.name for one, _ in matched}]:
        yield Finding(
            code="not-replayed",
            severity=Severity.WARNING,
            message=f"What {_list(left)} would accept is not known: the profile does not have it.",
            fix="Replay the log with it as a candidate.",
        )
    if far := [row for row in rows if row.is_extrapolated]:
        first = min(far, key=lambda row: row.load)
        yield Finding(
            code="far-from-calibrated",
            severity=Severity.ERROR,
            message=f"From {first.axis} {first.load:g} on, {first.setting} decodes more than twice as many sequences "
            "as were calibrated: nothing is known of such steps.",
            fix="Calibrate with a larger --concurrency, or ask for smaller loads.",
        )
    if profile.target.name and calibration.target and not _same_model(profile.target.name, calibration.target):
        yield Finding(
            code="two-models",
            severity=Severity.WARNING,
            message=f"The log was replayed for {profile.target.name}, and {calibration.target} was calibrated.",
            fix="Use a replay and a calibration of one model.",
        )


def _same_model(one: str, other: str) -> bool:
    return one.rstrip("/").rpartition("/")[2].lower() == other.rstrip("/").rpartition("/")[2].lower()


def _list(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
