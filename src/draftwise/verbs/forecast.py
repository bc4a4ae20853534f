"""`forecast`: predicts the speed-up of speculation under unmeasured loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Annotated, ClassVar

from draftwise.core import (
    CalibratedSetting,
    Calibration,
    Comparison,
    Finding,
    Forecast,
    HeldAgainst,
    Profile,
    Run,
    Severity,
    SpecConfig,
    StepPoint,
    Verdict,
)
from draftwise.core.comparison import ALL
from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.plan.forecast.calibrated_server import match_settings
from draftwise.plan.forecast.forecasting import forecast as make_forecast
from draftwise.plan.forecast.run_cells import find_cell, hold_against, is_config_of
from draftwise.plan.forecast.simulate import simulate_services
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile, write_document
from draftwise.verbs.field_types import Range
from draftwise.verbs.loads import read_range
from draftwise.verbs.verb import Result, refuse, verb

_CONCURRENCY = "1-128"
_LIKE = 1.25
"""Times the usual length of the replayed log, up to which requests of a run are as long."""


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """A replay, a calibration, and the loads to forecast."""

    profile: Profile | str | PathLike[str]
    """Profile from `replay`: its folder, its file, or the value."""
    calibration: Calibration | str | PathLike[str]
    """Calibration from `calibrate`: its file, or the value."""
    _: KW_ONLY
    concurrency: str | float | Sequence[float] | None = None
    """Requests in flight, e.g. `1,8,64` or `1-256`; None for 1 to 128, or for no closed loop if you give `rates`."""
    rates: str | float | Sequence[float] | None = None
    """Requests per second, sent without waiting for answers."""
    traffic: str | None = None
    """Workload whose lengths to use, such as a log; any form that `decide` accepts."""
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
    """Run of `decide` to compare the forecast with; the calibration keeps the error for later intervals."""
    out: str | PathLike[str] | None = None
    """File to write the forecast to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow(HeldAgainst):
    """A forecast, the later measurement, and the error."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("error", "of_acceptance", "of_steps", "is_other_traffic")
    step_ms: tuple[float, float | None]
    """Milliseconds per decoding step of the candidate, forecast and measured; null if the run has too few steps."""
    plain_step_ms: tuple[float, float | None]
    """Likewise for the baseline."""
    not_kept: str | None
    """Why the calibration does not keep this error, in words; null if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult(Result):
    """The forecast, or its error if the request names a run."""

    VERB: ClassVar[str] = "forecast"
    made: Forecast | None = field(default=None, metadata=HIDDEN)
    """None if the request names a run to compare with."""
    held: tuple[HeldRow, ...] = field(default=(), metadata=HIDDEN)
    """Forecasts compared with the measurements of a run; empty if the request names none."""
    differences: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """Differences of the run's deployment from the calibrated one, in words."""
    not_compared: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """Parts of the run without a forecast to compare with, and remarks, in words."""
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
    def notices(self) -> tuple[Finding, ...]:
        """How the run differs from what was calibrated and replayed."""
        differ = (
            Finding.warning("calibration-of-another", f"Calibration and run differ: {each}.")
            for each in self.differences
        )
        return (*differ, *(Finding.info("not-compared", each) for each in self.not_compared))

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error, e.g. a load far beyond what was calibrated."""
        return int(self.made is not None and any(each.severity is Severity.ERROR for each in self.made.findings))

    def to_wire(self) -> Forecast | tuple[HeldRow, ...]:
        """Return the document: the forecast, or the comparisons with a run."""
        return self.held if self.made is None else self.made


@verb(ForecastRequest)
def forecast(request: ForecastRequest, progress: Progress) -> ForecastResult:
    """Predict the speed-up of speculation from a replayed log and calibrated servers.

    The result has the speed-up by load with 90 % intervals, the load from which each method stops paying, and what to
    run. An interval that contains 1 is too close to call; you then get the `decide` command that settles it.
    """
    profile = request.profile if isinstance(request.profile, Profile) else read_profile(Path(request.profile))
    given = request.calibration
    file = None if isinstance(given, Calibration) else Path(given)
    calibration = given if isinstance(given, Calibration) else read_calibration(Path(given))
    shown = partial(ForecastResult, file=file, group=request.group, slo_tpot_ms=request.slo_tpot_ms)
    if request.against is not None:
        run = request.against if isinstance(request.against, Run) else RunDirectory(Path(request.against)).read()
        held = _Against(profile, calibration, run)
        calibration = _remember(calibration, held.rows)
        if file is not None:
            write_document(file, calibration)
        return shown(
            held=tuple(held.rows),
            differences=tuple(held.differences),
            not_compared=tuple(dict.fromkeys(held.not_compared)),
            calibration=calibration,
        )
    made = _make(profile, calibration, request, progress)
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


def _make(profile: Profile, calibration: Calibration, request: ForecastRequest, progress: Progress) -> Forecast:
    rates = () if request.rates is None else read_range(request.rates)
    concurrency = request.concurrency
    if concurrency is None:
        concurrency = () if rates else _CONCURRENCY
    prompt, output = request.prompt_tokens, request.output_tokens
    lengths = [] if request.traffic is None else _read_lengths(request.traffic, calibration, progress)
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


def _read_lengths(source: str, calibration: Calibration, progress: Progress) -> list[tuple[float, float]]:
    """Return the tokens of prompt and answer of each request of a workload."""
    # They read texts, which most forecasts do not need.
    from draftwise.workloads import find_tokens, load_workloads, report_left_out
    from draftwise.workloads.reshape import prompt_length

    tokenizer = Path(calibration.target)
    tokens = find_tokens(None, hint=tokenizer)
    workloads = load_workloads(source, tokenizer=tokenizer)
    for finding in report_left_out(workloads):
        progress.notice(finding)
    prompts = [prompt for each in workloads for prompt in each.prompts]
    if not prompts:
        raise refusal("no-prompts", source=source)
    return [(prompt_length(prompt, tokens), prompt.max_tokens) for prompt in prompts]


def _remember(calibration: Calibration, held: Sequence[HeldRow]) -> Calibration:
    """Return the calibration with the errors of its forecasts, as far as they tell of it."""
    fresh = {(each.setting, each.workload, each.load) for each in held}
    kept = tuple(each for each in calibration.held if (each.setting, each.workload, each.load) not in fresh)
    like = (copy_fields(HeldAgainst, each) for each in held if each.not_kept is None)
    return replace(calibration, held=(*kept, *like))


class _Against:
    """The comparisons of a run with forecasts for the lengths of its own requests.

    Raises:
        InvalidSetup: nothing of the run was both replayed and calibrated.
    """

    def __init__(self, profile: Profile, calibration: Calibration, run: Run) -> None:
        # What measures and all of statistics: not needed for a forecast alone.
        from draftwise.deciding.conclusions import conclude_run
        from draftwise.measure.calibrating import find_points, find_spec
        from draftwise.measure.screening import MODEL_UNKNOWN, find_differences

        self._profile, self._calibration, self._run = profile, calibration, run
        differences = list(find_differences(calibration, run.plan, run.context))
        self.differences = [each for each in differences if each != MODEL_UNKNOWN]
        doubt = f"Whether the run's model is {calibration.target} cannot be told: {MODEL_UNKNOWN}."
        self.not_compared = [doubt] if MODEL_UNKNOWN in differences else []
        self.rows: list[HeldRow] = []
        comparisons = [each for each in conclude_run(run).decision.comparisons if each.workload != ALL]
        self._settings: dict[str, tuple[CalibratedSetting, int]] = {}
        for arm in run.plan.arms[1:]:
            spec = find_spec(run.context, arm)
            setting = self._find_setting(arm.name, spec)
            if setting is not None:
                k = spec.num_speculative_tokens if spec is not None else None
                self._settings[arm.name] = setting, k or setting.k
        lengths = {name: k for name, (_, k) in self._settings.items()} | {run.plan.arms[0].name: 0}
        self._points = {
            (point.setting, point.load, point.workload): point
            for point in find_points(run, lengths)
            if not point.prefill_tokens
        }
        for workload in dict.fromkeys(each.workload for each in comparisons):
            self._compare(workload, [each for each in comparisons if each.workload == workload])
        if not self.rows:
            why = " ".join(dict.fromkeys(self.not_compared)) or "It has no comparison."
            raise refusal("no-common-candidate", case="against", why=why)

    def _find_setting(self, name: str, spec: SpecConfig | None) -> CalibratedSetting | None:
        """Return the calibrated server that a candidate of the run is, by its config where that is known."""
        named = next((each for each in self._calibration.candidates if each.name == name), None)
        if spec is None:
            same = [named] if named is not None else []
        else:
            same = [each for each in self._calibration.candidates if each.spec and is_config_of(spec, each.spec)]
        if not same:
            told = f"{name} was not calibrated"
            if spec is not None and named is not None and named.spec is not None:
                told += f" under that config: {spec.to_json()} in the run, {named.spec.to_json()} in the calibration"
            self.not_compared.append(f"{told}.")
            return None
        return named if named in same else same[0]

    def _compare(self, workload: str, comparisons: Sequence[Comparison]) -> None:
        known = [each for each in comparisons if each.candidate in self._settings]
        places = {place for each in known if (place := each.condition.place) is not None}
        answers = [each for each in self._run.answers if each.workload == workload and each.measured and not each.error]
        if not (places and answers):
            self.not_compared += [f"{each.condition.label} is a load that is not forecast." for each in known]
            return
        prompt = fmean(each.num_prompt_tokens or len(each.prompt_token_ids) for each in answers)
        output = fmean(each.timing.num_tokens for each in answers)
        made = make_forecast(
            self._profile,
            self._calibration,
            concurrency=sorted(load for axis, load in places if axis == "concurrency"),
            rates=sorted(load for axis, load in places if axis == "rate"),
            prompt_tokens=prompt,
            output_tokens=output,
        )
        if any(each.code == "two-models" for each in made.findings):
            text = f"replayed for {self._profile.target.name}, calibrated with {self._calibration.target}"
            self.differences += [text] if text not in self.differences else []
        self._compare_lengths(workload, prompt, output)
        for each in known:
            setting, k = self._settings[each.candidate]
            cell = find_cell(made, setting.name, k, workload, each.condition)
            if cell is None or cell.is_extrapolated:
                where = f"{each.candidate} on {workload} at {each.condition.label}"
                why = self._find_reason(setting, k, each) if cell is None else "more than twice the calibrated batch"
                self.not_compared.append(f"{where} has no forecast: {why}.")
                continue
            held = hold_against(cell, each)
            at = (each.condition.label, workload)
            mine, plain = (self._points.get((arm, *at)) for arm in (each.candidate, self._run.plan.arms[0].name))
            self.rows.append(
                copy_fields(
                    HeldRow,
                    held,
                    step_ms=(cell.step_ms, _time(mine)),
                    plain_step_ms=(cell.plain_step_ms, _time(plain)),
                    not_kept=self._find_flaw(held, each),
                )
            )

    def _compare_lengths(self, workload: str, prompt: float, output: float) -> None:
        log = self._profile.log
        if not (log.prompt_tokens and log.used):
            return
        usual = (log.prompt_tokens[1], log.tokens_out / log.used)
        ratios = [(new + 1) / (old + 1) for new, old in zip((prompt, output), usual, strict=True)]
        if not all(1 / _LIKE <= each <= _LIKE for each in ratios):
            self.not_compared.append(
                f"{workload} has prompts of {prompt:.0f} tokens and answers of {output:.0f} in the run, but of "
                f"{usual[0]:.0f} and {usual[1]:.0f} in the replayed log: the forecast here is for those of the run."
            )

    def _find_reason(self, setting: CalibratedSetting, k: int, each: Comparison) -> str:
        """Return why a comparison has no forecast."""
        entries = [entry for one, entry in match_settings(self._profile, self._calibration) if one == setting]
        if not entries:
            return "it was not replayed"
        if k > setting.k or not any(k in entry.by_k for entry in entries):
            most = max((one for entry in entries for one in entry.by_k), default=0)
            return f"k={k} is more than was calibrated ({setting.k}) or replayed ({most})"
        if each.condition.temperature not in {entry.temperature for entry in entries}:
            return f"nothing was replayed at temperature {each.condition.temperature:g}"
        if each.condition.place is None:
            return "such loads are not forecast"
        groups = {entry.group for entry in entries}
        return (
            "the replay has other groups" if not groups & {None, each.workload} else "a server cannot keep up with it"
        )

    def _find_flaw(self, held: HeldAgainst, comparison: Comparison) -> str | None:
        """Return why an error tells nothing of the calibration's forecasts."""
        from draftwise.deciding.verdict import LEAVES_OPEN
        from draftwise.reporting.sentences import describe_reason

        if self.differences:
            return "calibration and run differ"
        if held.is_other_traffic:
            return "it is not the replayed traffic"
        reason, verdict = comparison.reason, comparison.verdict
        is_open = verdict is Verdict.INCONCLUSIVE and reason is not None and reason.code in LEAVES_OPEN
        if reason is None or is_open or verdict not in (Verdict.INCONCLUSIVE, Verdict.BLOCKED):
            return None
        return f"the run itself doubts the number: {describe_reason(reason)}"


def _time(point: StepPoint | None) -> float | None:
    return None if point is None else point.step_ms
