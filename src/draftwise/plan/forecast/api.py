"""A forecast from files: the verb `forecast` from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from draftwise.core import Calibration, Forecast, Profile
from draftwise.plan.forecast.forecasting import forecast as make_forecast
from draftwise.plan.forecast.simulate import simulate_services
from draftwise.runs.documents import read_calibration, read_profile

__all__ = ["forecast"]


def forecast(
    profile: Profile | str | PathLike[str],
    calibration: Calibration | str | PathLike[str],
    *,
    concurrency: Sequence[float] = (1, 2, 4, 8, 16, 32, 64, 128),
    rates: Sequence[float] = (),
    prompt_tokens: float | None = None,
    output_tokens: float | None = None,
    simulate: bool = False,
) -> Forecast:
    """Return what speculation is expected to be worth under loads that were not measured.

    Args:
        profile: what `draftwise replay` found: its folder, its file, or the value.
        calibration: what `draftwise calibrate` measured: its file, or the value.
        concurrency: requests in flight.
        rates: requests a second, of arrivals that wait for nothing.
        prompt_tokens: of a request, in the mean; None for the log's median.
        output_tokens: of an answer; None for the log's mean.
        simulate: also serve 1,000 requests of these lengths step by step, for percentiles.

    Raises:
        InvalidSetup: a file cannot be read, or the two have no candidate in common.
    """
    acceptance = profile if isinstance(profile, Profile) else read_profile(Path(profile))
    steps = calibration if isinstance(calibration, Calibration) else read_calibration(Path(calibration))
    made = make_forecast(
        acceptance,
        steps,
        concurrency=concurrency,
        rates=rates,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    if not simulate:
        return made
    lengths = [(made.prompt_tokens, made.output_tokens)]
    return replace(made, simulated=tuple(simulate_services(made, acceptance, steps, lengths)))
