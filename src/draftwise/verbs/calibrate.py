"""`calibrate`: measures how long the steps of servers last, in a few minutes of load."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import Calibration, ClosedLoop, Condition, InvalidSetup, SpecConfig
from draftwise.core.documents import HIDDEN
from draftwise.core.exit_codes import ExitCode
from draftwise.core.progress import Progress
from draftwise.measure import measurement as measurements
from draftwise.measure.calibrating import make_calibration, require_known
from draftwise.measure.measurement import Measurement
from draftwise.measure.measurement_spec import MeasurementSpec
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.runs import RunDirectory
from draftwise.runs.documents import write_document
from draftwise.verbs.field_types import Range
from draftwise.verbs.loads import read_numbers
from draftwise.verbs.measuring import (
    Candidate,
    Ending,
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
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["CalibrateRequest", "CalibrateResult", "CalibratedCosts", "calibrate"]

_NAMED_URL = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<url>https?://.*)")
_LOADS: Mapping[str, tuple[int, ...]] = {"draftwise": (1, 4), "vllm": (1, 8, 64)}
"""Streams by engine: from one sequence to where computing takes as long as reading the weights."""
_REPEATS = 2
_MISSING = ("target-unknown", "candidate-unknown")
"""Codes of what options tell that were not given."""
_WORKLOADS = ("code", "rewrite")


@dataclass(frozen=True, slots=True)
class CalibrateRequest(ServersRequest):
    """Servers whose steps to measure, or a run that measured them."""

    _: KW_ONLY
    model: str | PathLike[str] | None = None
    """Model at `url`, if the server does not name it: a directory or a known id."""
    concurrency: str | float | Sequence[float] | None = None
    """Concurrent streams; None for 1, 8 and 64 (embedded engine: 1 and 4)."""
    minutes: Annotated[float, Range(above=0)] = 5.0
    """Time budget in minutes, server starts included."""
    run: str | PathLike[str] | None = None
    """Directory for the raw readings; None for a new one under `runs`."""
    from_run: str | PathLike[str] | None = None
    """Finished run of `calibrate` or `decide`, whose steps to use instead of measuring."""
    out: str | PathLike[str] | None = None
    """File to write the calibration to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateResult(Result):
    """Measured step times of servers."""

    VERB: ClassVar[str] = "calibrate"
    JSON_OF: ClassVar[str] = "calibration"
    calibration: Calibration = field(metadata=HIDDEN)
    directory: Path = field(metadata=HIDDEN)
    """Run directory with the raw readings."""
    is_finished: bool = field(default=True, metadata=HIDDEN)
    """False if the measurement was stopped; `resume` continues it."""

    @property
    def exit_code(self) -> int:
        """130 if the measurement was stopped."""
        return 0 if self.is_finished else ExitCode.INTERRUPTED


@verb(CalibrateRequest)
def calibrate(request: CalibrateRequest, progress: Progress) -> CalibrateResult:
    """Measure how long the steps of servers last, for `forecast`.

    Serves a target as a baseline and once per candidate, or measures servers that already run. The gaps between
    streamed chunks are the steps. Acceptance does not matter, so any text will do, and so will synthetic acceptance.

    A step of `progress` is a request. If a server fails, the result so far goes to `progress.update` before the error
    is raised.
    """
    named = request.model or request.target
    target, specs = None if named is None else str(named), _name_specs(request)
    if request.from_run is None:
        measurement = _open(request, progress)
        examine = partial(require_known, target=target, specs=specs)
        again = get_resume_command("calibrate", measurement.directory.path, request.out)
        ending = measure(measurement, progress, examine, again=again)
        ending.require_some(measurement.directory.path)
        directory = measurement.directory
    else:
        directory, ending = RunDirectory(Path(request.from_run)), Ending(is_finished=True)
    try:
        calibration = make_calibration(directory.read(), target=target, specs=specs)
    except InvalidSetup as error:
        kept, again = "", get_resume_command("calibrate", directory.path, request.out)
        if not ending.is_finished:
            kept = f" The readings are kept. Go on with: {again}"
        elif all(each.code in _MISSING for each in error.findings):
            kept = f" The readings are kept. Add the missing options to: {again.replace('--resume', '--from', 1)}"
        raise InvalidSetup(replace(each, fix=f"{each.fix}{kept}") for each in error.findings) from None
    if request.out is not None:
        write_document(Path(request.out), calibration)
    result = CalibrateResult(calibration=calibration, directory=directory.path, is_finished=ending.is_finished)
    if ending.failure is not None:
        progress.update(result)
        raise ending.failure
    return result


def _name_specs(request: CalibrateRequest) -> dict[str, SpecConfig]:
    """Return speculative configs that are given by name, for servers that do not tell theirs."""
    given = read_candidates(request.candidates)
    return {each.name: each.spec for each in given if each.name and each.spec is not None}


def _open(request: CalibrateRequest, progress: Progress) -> Measurement:
    headers = read_headers(request.headers, request.key_variables)
    if request.resume is not None:
        refuse_changes(request, stay=("model", "out", "candidates"))
        return measurements.resume(
            Path(request.resume), headers=headers, minutes=request.minutes, began_s=request.began_s
        )
    urls, candidates = _match_candidates(request)
    loads = request.concurrency or _LOADS[request.engine if request.url is None else "vllm"]
    spec = MeasurementSpec(
        target=None if request.target is None else str(request.target),
        engine=request.engine,
        launch=read_launch(request),
        serve_args=split_arguments(request.serve_args),
        url=request.url,
        candidate_urls=urls,
        metrics_urls=tuple(request.metrics_urls),
        headers=headers,
        candidates=candidates,
        workloads=((request.workloads,) if isinstance(request.workloads, str) else tuple(request.workloads))
        or _WORKLOADS,
        max_tokens=request.max_tokens,
        conditions=tuple(
            Condition(load=ClosedLoop(concurrency=int(load)))
            for load in read_numbers(loads, of="loads", least=1, whole=True)
        ),
        minutes=request.minutes,
        repeats=_REPEATS,
        adaptive=False,  # every server under every load, no load left out or added
        one_at_a_time=request.one_at_a_time,
        notes=read_notes(request.notes) | ({} if request.model is None else {"model": str(request.model)}),
        out=None if request.run is None else Path(request.run),
    )
    refuse_conflict(spec)
    return measurements.prepare(spec, progress, began_s=request.began_s)


def _match_candidates(request: CalibrateRequest) -> tuple[tuple[str, ...], tuple[Candidate, ...]]:
    """Return the URLs of candidates, and the candidates in their order: by name where URLs have names."""
    candidates = list(read_candidates(request.candidates))
    found = [_read_url(text) for text in request.candidate_urls]
    if not any(name for name, _ in found):
        return tuple(url for _, url in found), tuple(candidates)
    specs: dict[str | None, SpecConfig | None] = {each.name: each.spec for each in candidates}
    if unknown := [str(name) for name in specs if name not in {name for name, _ in found}]:
        refuse(f"--candidate {', '.join(unknown)}: no --candidate-url has that name.")
    return tuple(url for _, url in found), tuple(Candidate(name=name, spec=specs.get(name)) for name, _ in found)


def _read_url(text: str) -> tuple[str | None, str]:
    match = _NAMED_URL.fullmatch(text)
    if match is None:
        refuse(f"--candidate-url takes [NAME=]http://HOST:PORT, got {text!r}.")
    return match["name"], match["url"]
