"""`forecast`: predicts speculation's worth under loads that nobody has measured yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Annotated, ClassVar

from draftwise.core import Calibration, Forecast, HeldAgainst, Profile, Run, Severity
from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.plan.forecast.forecasting import forecast as make_forecast
from draftwise.plan.forecast.run_cells import hold_against
from draftwise.plan.forecast.simulate import simulate_services
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile, write_document
from draftwise.verbs.field_types import Range
from draftwise.verbs.loads import read_range
from draftwise.verbs.verb import Result, refuse, verb

_CONCURRENCY = "1-128"


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """A replay, a calibration, and the loads to forecast."""

    profile: Profile | str | PathLike[str]
    """Profile from `replay`: its folder, its file, or the value."""
    calibration: Calibration | str | PathLike[str]
    """Calibration from `calibrate`: its file, or the value."""
    _: KW_ONLY
    concurrency: str | float | Sequence[float] | None = None
    """Requests in flight, e.g. `1,8,64` or `1-256`; None for 1 to 128, or for none of them if `rates` are given."""
    rates: str | float | Sequence[float] | None = None
    """Requests per second, sent without waiting for answers."""
    traffic: str | None = None
    """Workload whose lengths count, as `decide` takes it, e.g. a log."""
    prompt_tokens: Annotated[float, Range(0)] | None = None
    """Mean tokens of a prompt; None for the median of the replayed log."""
    output_tokens: Annotated[float, Range(1)] | None = None
    """Mean tokens of an answer; None for the mean of the replayed log."""
    simulate: bool = False
    """Whether to simulate 1,000 requests step by step, for percentiles of TTFT and TPOT at each load."""
    group: str | None = None
    """Group of the replayed log to show instead of all requests."""
    slo_tpot_ms: Annotated[float, Range(above=0)] | None = None
    """Promised time per output token, in milliseconds."""
    against: Run | str | PathLike[str] | None = None
    """Run of `decide`: compares the forecast with the measurement, and keeps the error for the next interval."""
    out: str | PathLike[str] | None = None
    """File to write the forecast to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow(HeldAgainst):
    """A forecast compared with what was measured later, and its error."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("error", "of_acceptance", "of_steps", "is_other_traffic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult(Result):
    """The forecast, or its error if the request names a run."""

    VERB: ClassVar[str] = "forecast"
    made: Forecast | None = field(default=None, metadata=HIDDEN)
    """None where the request names a run to compare with."""
    held: tuple[HeldRow, ...] = field(default=(), metadata=HIDDEN)
    """Forecasts compared with the measurements of a run; empty where the request names none."""
    differences: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """Differences of the run from calibration and replay, in words."""
    calibration: Calibration = field(metadata=HIDDEN)
    """The calibration, with the errors of the compared forecasts."""
    file: Path | None = field(default=None, metadata=HIDDEN)
    """File of the calibration, if it was given as one."""
    group: str | None = field(default=None, metadata=HIDDEN)
    slo_tpot_ms: float | None = field(default=None, metadata=HIDDEN)

    @property
    def forecast(self) -> Forecast:
        """The forecast.

        Raises:
            LookupError: the request names a run to compare with; see `held`.
        """
        if self.made is None:
            raise LookupError("The forecast was compared with a run: its errors are in `held`.")
        return self.made

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error, e.g. a load far beyond what was calibrated."""
        return int(self.made is not None and any(each.severity is Severity.ERROR for each in self.made.findings))

    def to_wire(self) -> Forecast | tuple[HeldRow, ...]:
        """Return the document: the forecast, or the comparisons with a run."""
        return self.held if self.made is None else self.made


@verb(ForecastRequest)
def forecast(request: ForecastRequest, _progress: Progress) -> ForecastResult:
    """Predict the speed-up of speculation from a replayed log and calibrated servers.

    Speed-up by load with 90 % intervals, the load from which each method stops paying, and what to run. If an
    interval contains 1, it is too close to call, and you get the `decide` command that settles it.
    """
    profile = request.profile if isinstance(request.profile, Profile) else read_profile(Path(request.profile))
    given = request.calibration
    file = None if isinstance(given, Calibration) else Path(given)
    calibration = given if isinstance(given, Calibration) else read_calibration(Path(given))
    shown = partial(ForecastResult, file=file, group=request.group, slo_tpot_ms=request.slo_tpot_ms)
    if request.against is not None:
        run = request.against if isinstance(request.against, Run) else RunDirectory(Path(request.against)).read()
        held = _compare(profile, calibration, run)
        calibration = _remember(calibration, held)
        if file is not None:
            write_document(file, calibration)
        from draftwise.measure.screening import find_differences  # a forecast alone needs nothing that measures

        rows = tuple(copy_fields(HeldRow, each) for each in held)
        different = tuple(find_differences(calibration, run.plan, run.context))
        return shown(held=rows, differences=different, calibration=calibration)
    made = _make(profile, calibration, request)
    groups = {each.group for each in made.cells}
    if made.cells and request.group not in groups:
        named = ", ".join(sorted(each for each in groups if each is not None))
        text = (
            f"The profile has no group {request.group!r}" if request.group else "The profile has requests by group only"
        )
        refuse(f"{text}. Name one of its groups: {named or 'it has none'}.", where="--group")
    if request.out is not None:
        write_document(Path(request.out), made)
    return shown(made=made, calibration=calibration)


def _make(profile: Profile, calibration: Calibration, request: ForecastRequest) -> Forecast:
    rates = () if request.rates is None else read_range(request.rates)
    concurrency = request.concurrency
    if concurrency is None:
        concurrency = () if rates else _CONCURRENCY
    prompt, output = request.prompt_tokens, request.output_tokens
    lengths = [] if request.traffic is None else _read_lengths(request.traffic, calibration)
    if lengths:
        prompt = prompt or fmean(tokens for tokens, _ in lengths)
        output = output or fmean(tokens for _, tokens in lengths)
    made = make_forecast(
        profile,
        calibration,
        concurrency=read_range(concurrency) if concurrency else (),
        rates=rates,
        prompt_tokens=prompt,
        output_tokens=output,
    )
    if not request.simulate:
        return made
    if not lengths or request.prompt_tokens or request.output_tokens:
        lengths = [(made.prompt_tokens, made.output_tokens)]
    return replace(made, simulated=tuple(simulate_services(made, profile, calibration, lengths)))


def _read_lengths(source: str, calibration: Calibration) -> list[tuple[float, float]]:
    """Return the tokens of prompt and answer of each request of a workload."""
    from draftwise.workloads import find_tokens, load_workloads  # reads texts: not needed for most forecasts
    from draftwise.workloads.reshape import prompt_length

    tokenizer = Path(calibration.target)
    tokens = find_tokens(None, hint=tokenizer)
    prompts = [prompt for each in load_workloads(source, tokenizer=tokenizer) for prompt in each.prompts]
    if not prompts:
        raise refusal("no-prompts", source=source)
    return [(prompt_length(prompt, tokens), prompt.max_tokens) for prompt in prompts]


def _compare(profile: Profile, calibration: Calibration, run: Run) -> Sequence[HeldAgainst]:
    held = list(_hold_all(profile, calibration, run))
    if not held:
        raise refusal("no-common-candidate", case="against")
    return held


def _remember(calibration: Calibration, held: Sequence[HeldAgainst]) -> Calibration:
    """Return the calibration with the errors of its forecasts. Those on other traffic are not kept."""
    fresh = {(each.setting, each.workload, each.load) for each in held}
    kept = tuple(each for each in calibration.held if (each.setting, each.workload, each.load) not in fresh)
    return replace(calibration, held=(*kept, *(each for each in held if not each.is_other_traffic)))


def _hold_all(profile: Profile, calibration: Calibration, run: Run) -> Iterator[HeldAgainst]:
    """Yield every comparison of a run with a forecast for the lengths of its own requests."""
    from draftwise.deciding.conclusions import conclude_run  # draws on all of statistics: only needed here

    found = conclude_run(run)
    lengths = {setting.name: setting.k for setting in calibration.candidates}
    for workload in dict.fromkeys(each.workload for each in found.decision.comparisons):
        same = [each for each in found.decision.comparisons if each.workload == workload and each.candidate in lengths]
        places = {place for each in same if (place := each.condition.place) is not None}
        answers = [each for each in run.answers if each.workload == workload and each.measured and not each.error]
        if not places or not answers:
            continue
        made = make_forecast(
            profile,
            calibration,
            concurrency=sorted(load for axis, load in places if axis == "concurrency"),
            rates=sorted(load for axis, load in places if axis == "rate"),
            prompt_tokens=sum(each.num_prompt_tokens or len(each.prompt_token_ids) for each in answers) / len(answers),
            output_tokens=sum(each.timing.num_tokens for each in answers) / len(answers),
        )
        for each in same:
            if (beside := hold_against(made, lengths[each.candidate], each)) is not None:
                yield beside
