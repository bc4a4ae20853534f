"""`decide`: measures whether speculation pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import Arrivals, Calibration, Condition, Phase, Profile
from draftwise.core.documents import HIDDEN
from draftwise.core.exit_codes import ExitCode
from draftwise.core.progress import Progress
from draftwise.measure import measurement as measurements
from draftwise.measure.measurement import Measurement
from draftwise.measure.measurement_spec import MeasurementSpec
from draftwise.verbs.concluded_runs import ConcludedRun, conclude
from draftwise.verbs.field_types import Range
from draftwise.verbs.loads import make_conditions, read_numbers
from draftwise.verbs.measuring import (
    ServersRequest,
    get_resume_command,
    measure,
    read_candidates,
    read_launch,
    refuse_changes,
    refuse_conflict,
    split_arguments,
)
from draftwise.verbs.notes import read_notes
from draftwise.verbs.request_headers import read_headers
from draftwise.verbs.verb import verb
from draftwise.workloads import BUNDLED


@dataclass(frozen=True, slots=True)
class DecideRequest(ServersRequest):
    """Servers to compare, the workloads and loads to compare them under, and how long to measure."""

    _: KW_ONLY
    out: str | PathLike[str] | None = None
    """Run directory; None for a new one under `runs`."""
    prompts: Annotated[int, Range(1)] | None = None
    """Prompts per workload; None for as many as fit in the time."""
    minutes: Annotated[float, Range(above=0)] | None = None
    """Time budget in minutes, server starts included; None for 10 minutes, or for no limit if you give `prompts`."""
    repeats: Annotated[int, Range(1)] = 5
    """Repetitions of the prompts."""
    warmup: Annotated[int, Range(1)] = 3
    """Discarded requests per arm."""
    seed: int = 0
    concurrency: str | float | Sequence[float] | None = None
    """Requests in flight (closed loop); None for 1 if you give no other load."""
    rate: str | float | Sequence[float] | None = None
    """Requests per second (open loop), sent whether or not earlier ones are answered."""
    arrivals: Arrivals | str = Arrivals.POISSON
    """Gaps between the requests of an open loop."""
    phases: str | Sequence[Phase] | None = None
    """Ramps and bursts, e.g. `60s:1-8/s,30s:20/s`."""
    replay: Annotated[float, Range(above=0)] | None = None
    """Speed at which recorded arrival times are replayed; None for no replay."""
    turn_seconds: Annotated[float, Range(above=0)] = 20.0
    """Seconds of a turn at a steady rate."""
    temperatures: str | float | Sequence[float] = (0.0,)
    lengths: str | int | Sequence[int] | None = None
    """Values of num_speculative_tokens to try with every candidate."""
    adaptive: bool = True
    """Whether to stop measuring settled cells, and to search for the load at which speculation stops paying."""
    profile: Profile | str | PathLike[str] | None = None
    """Acceptance profile of this traffic, from `replay`; drops candidates that cannot win."""
    calibration: Calibration | str | PathLike[str] | None = None
    """Calibration of these servers, from `calibrate`; drops candidates that cannot win. With `profile`, it also chooses
    the loads to measure."""
    processes: Annotated[int, Range(1)] | None = None
    """Processes of the load generator; None for as many as the load needs."""
    margin: Annotated[float, Range(0, below=1)] | None = None
    """Smallest speed-up worth a change, as a share; None for 0.03."""
    slo_ttft_ms: Annotated[float, Range(above=0)] | None = None
    """Promised time to the first token in milliseconds, for goodput."""
    slo_tpot_ms: Annotated[float, Range(above=0)] | None = None
    """Promised time per output token in milliseconds, for goodput."""
    slo_e2e_ms: Annotated[float, Range(above=0)] | None = None
    """Promised time to the last token in milliseconds, for goodput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResult(ConcludedRun):
    """The conclusions of a measurement."""

    VERB: ClassVar[str] = "decide"
    is_finished: bool = field(default=True, metadata=HIDDEN)
    """False if the measurement was stopped; `resume` continues it."""

    @property
    def exit_code(self) -> int:
        """130 if it was stopped; 1 if there is a finding of severity error, or nothing was compared."""
        if not self.is_finished:
            return ExitCode.INTERRUPTED
        return int(self.decision.has_error or not self.decision.comparisons)


@verb(DecideRequest)
def decide(request: DecideRequest, progress: Progress) -> DecideResult:
    """Measure whether speculation pays for a target.

    Serves the target as a baseline and once per candidate, sends the same prompts to all of them in turns, and writes a
    report. With URLs, it compares servers that already run.

    A step of `progress` is a request. If a server fails, the result so far goes to `progress.update` before the error
    is raised.
    """
    measurement = _open(request, progress)
    ending = measure(measurement, progress, again=get_resume_command("decide", measurement.directory.path))
    ending.require_some(measurement.directory.path)
    result = replace(conclude(DecideResult, measurement.directory), is_finished=ending.is_finished)
    if ending.failure is not None:
        progress.update(result)
        raise ending.failure
    return result


def _open(request: DecideRequest, progress: Progress) -> Measurement:
    headers = read_headers(request.headers, request.key_variables)
    if request.resume is not None:
        refuse_changes(request, stay=("processes",))
        return measurements.resume(
            Path(request.resume),
            headers=headers,
            processes=request.processes,
            minutes=request.minutes,
            began_s=request.began_s,
        )
    spec = MeasurementSpec(
        target=None if request.target is None else str(request.target),
        engine=request.engine,
        launch=read_launch(request),
        serve_args=split_arguments(request.serve_args),
        url=request.url,
        candidate_urls=tuple(request.candidate_urls),
        metrics_urls=tuple(request.metrics_urls),
        headers=headers,
        candidates=tuple(read_candidates(request.candidates)),
        draft_lengths=tuple(map(int, read_numbers(request.lengths or (), of="lengths", least=1, whole=True))),
        workloads=((request.workloads,) if isinstance(request.workloads, str) else tuple(request.workloads)) or BUNDLED,
        max_tokens=request.max_tokens,
        conditions=read_conditions(request),
        prompts=request.prompts,
        minutes=request.minutes,
        repeats=request.repeats,
        warmup=request.warmup,
        seed=request.seed,
        profile=request.profile if isinstance(request.profile, Profile | None) else Path(request.profile),
        calibration=(
            request.calibration if isinstance(request.calibration, Calibration | None) else Path(request.calibration)
        ),
        places_loads=not any((request.concurrency, request.rate, request.phases, request.replay)),
        turn_s=request.turn_seconds,
        adaptive=request.adaptive,
        one_at_a_time=request.one_at_a_time,
        processes=request.processes,
        notes=read_notes(request.notes),
        thresholds=_read_thresholds(request),
        out=None if request.out is None else Path(request.out),
    )
    refuse_conflict(spec)
    return measurements.prepare(spec, progress, began_s=request.began_s)


def read_conditions(request: DecideRequest) -> tuple[Condition, ...]:
    """Return the product of loads and temperatures."""
    return make_conditions(
        concurrency=() if request.concurrency is None else request.concurrency,
        rate=() if request.rate is None else request.rate,
        arrivals=request.arrivals,
        phases=request.phases or (),
        replay=request.replay,
        temperatures=request.temperatures,
    )


def _read_thresholds(request: DecideRequest) -> dict[str, float]:
    promised = {"slo_ttft_s": request.slo_ttft_ms, "slo_tpot_s": request.slo_tpot_ms, "slo_e2e_s": request.slo_e2e_ms}
    seconds = {name: value / 1e3 for name, value in promised.items() if value is not None}
    return seconds if request.margin is None else {"margin": request.margin, **seconds}
