"""Shared by verbs that measure servers: their servers, and how a measurement runs and ends."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from draftwise.core import (
    BackendError,
    Finding,
    InvalidSetup,
    LaunchOptions,
    RunContext,
    RunPlan,
    SpecConfig,
    StorageError,
)
from draftwise.core.progress import Progress, Stopped
from draftwise.knowledge.spec_keys import read_spec_keys
from draftwise.measure.load.event_loop import precise_loop
from draftwise.measure.measurement import Measurement
from draftwise.measure.measurement_spec import ENGINES, Candidate, MeasurementSpec
from draftwise.verbs.field_types import Range
from draftwise.verbs.request_headers import Header
from draftwise.verbs.sources import require_spec
from draftwise.verbs.verb import refuse

__all__ = [
    "ENGINES", "Candidate", "Ending", "GivenCandidate", "ServersRequest", "get_resume_command", "measure",
    "read_candidates", "read_launch", "refuse_changes", "refuse_conflict", "split_arguments",
]  # fmt: skip

GivenCandidate = Candidate | SpecConfig | Mapping[str, Any] | str
"""A speculative config: a value, its JSON or a file that holds it; or one of these after `NAME=`."""


@dataclass(frozen=True, slots=True)
class ServersRequest:
    """Servers to measure: started for a target, or already running."""

    target: str | PathLike[str] | None = None
    """Directory of a checkpoint, or a name that vLLM resolves; served once without and once with each candidate."""
    _: KW_ONLY
    candidates: Sequence[GivenCandidate] = ()
    """Speculative configs to compare with the baseline."""
    url: str | None = None
    """URL of the baseline's server, if it already runs."""
    candidate_urls: Sequence[str] = ()
    """URLs of servers that speculate."""
    metrics_urls: Sequence[str] = ()
    """Metrics pages, if a gateway hides /metrics: one per server in their order, or `ARM=URL`."""
    headers: Sequence[Header | str] = ()
    """`[ARM=]NAME: VALUE`, sent to the URLs; ${VARIABLE} stands for an environment variable."""
    key_variables: Sequence[str] = ()
    """`[ARM=]NAME` of environment variables that hold API keys for the URLs, or for one."""
    switch: str | None = None
    """Command that replaces the server at `url` with that of the arm `{arm}`."""
    leave: str | None = None
    """Arm whose server `switch` leaves running at the end; None for the baseline."""
    engine: str = "draftwise"
    """What serves the target: `draftwise` or `vllm`."""
    vllm: str = "vllm"
    """Command that starts vLLM: a path, `python -m vllm...`, `docker run ...`."""
    gpus: str | Sequence[str] | None = None
    """GPUs for the servers; None for all."""
    one_at_a_time: bool = False
    """Whether to start and stop servers in turn (A B, B A ...), for one GPU."""
    serve_args: str | Sequence[str] = ""
    """Arguments of the engine's `serve`, e.g. `--dtype float32`."""
    workloads: str | Sequence[str] = ()
    """Prompts: names of bundled ones, logs, traces, `synthetic:...`."""
    max_tokens: Annotated[int, Range(1)] | None = None
    """Upper limit for the max_tokens of every prompt."""
    notes: Mapping[str, str] | Sequence[str] = ()
    """Facts that draftwise cannot see, by key or as `KEY=VALUE`: hardware, precision, model, hardware.ARM,
    command.ARM."""
    resume: str | PathLike[str] | None = None
    """Directory of an unfinished run to continue as planned."""
    began_s: float | None = None
    """Start of the time budget on the monotonic clock, in seconds; None for now."""


def read_candidates(given: Iterable[GivenCandidate]) -> Iterator[Candidate]:
    """Yield candidates.

    Raises:
        InvalidSetup: a text is not a speculative config.
    """
    for each in given:
        if isinstance(each, Candidate):
            yield each
        elif isinstance(each, str):
            name, separator, rest = each.partition("=")
            named = bool(separator) and not set(name) & set("{[")
            spec = require_spec(rest if named else each, "--candidate")
            _refuse_slip(spec)
            yield Candidate(name=name.strip() if named else None, spec=spec)
        else:
            yield Candidate(spec=require_spec(each))


def _refuse_slip(spec: SpecConfig) -> None:
    """Refuse a key with a slip of the pen: a server at a URL would not, and its config is given back to paste."""
    known = read_spec_keys()
    for key in spec.options.keys() - known.keys():
        near = get_close_matches(key, known, n=1, cutoff=0.9)
        if near and abs(len(near[0]) - len(key)) < 2:
            message = f"{key!r} is not a key of the speculative config."
            raise InvalidSetup.because("unknown-key", message, where="--candidate", fix=f"Did you mean {near[0]!r}?")


def read_launch(request: ServersRequest) -> LaunchOptions:
    """Return how servers are started."""
    gpus = request.gpus.split(",") if isinstance(request.gpus, str) else request.gpus
    return LaunchOptions(
        vllm=request.vllm,
        gpus=None if gpus is None else tuple(each for each in gpus if each),
        switch=request.switch,
        leave=request.leave,
    )


def split_arguments(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return arguments one by one; text is split as a shell splits it.

    Raises:
        InvalidRequest: a quote is not closed.
    """
    if not isinstance(given, str):
        return tuple(given)
    try:
        return tuple(shlex.split(given))
    except ValueError as error:
        refuse(f"--serve-args {given!r} is not a valid command line ({error}).")


def refuse_conflict(spec: MeasurementSpec) -> None:
    """Refuse a measurement whose parts contradict each other.

    Raises:
        InvalidRequest: they do.
    """
    if conflict := spec.find_conflict():
        refuse(conflict)


def refuse_changes(request: ServersRequest, *, stay: Iterable[str]) -> None:
    """Refuse fields that would change an unfinished run.

    Raises:
        InvalidRequest: a field is given that is not in `stay` and that a resumed run keeps.
    """
    allowed = {*stay, "resume", "headers", "key_variables", "minutes", "began_s"}
    others = [each.name for each in fields(request) if each.name not in allowed and _is_given(request, each)]
    if others:
        refuse(f"--resume continues the run as planned; leave out {', '.join(sorted(others))}.")


def _is_given(request: ServersRequest, field: Any) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(request, field.name) != default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a session ended; whatever was measured is on disk."""

    is_finished: bool
    """Whether nothing is left to measure, or the time ran out."""
    failure: BackendError | StorageError | None = None

    def require_some(self, directory: Path) -> None:
        """Refuse a session in which nothing was measured.

        Args:
            directory: the run's folder; removed if it is empty.

        Raises:
            BackendError, StorageError: the failure that ended it.
            Stopped: it was stopped.
        """
        if (directory / "manifest.json").exists():
            return
        if self.failure is not None:
            raise self.failure
        raise Stopped


def get_resume_command(verb: str, directory: Path, out: str | PathLike[str] | None = None) -> str:
    """Return the command that continues a run."""
    return shlex.join(["draftwise", verb, "--resume", str(directory), *(() if out is None else ("--out", str(out)))])


def measure(
    measurement: Measurement,
    progress: Progress,
    examine: Callable[[RunPlan, RunContext], None] | None = None,
    *,
    again: str,
) -> Ending:
    """Measure until the plan is complete, the time runs out, something fails, or a stop is requested.

    Ctrl-C stops it at once: the servers shut down, and the readings stay on disk. The command `again` continues it.

    Raises:
        InvalidSetup: a server cannot start as configured, or is not the expected one.
    """
    session = measurement.open(progress, examine)
    progress.notice(Finding.info("measurement-planned", f"If this run is killed, continue with: {again}"))
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            runner.run(session.run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        ending = Ending(is_finished=False)
    except BaseExceptionGroup as group:  # the signal came while a library started tasks of its own
        if group.split((KeyboardInterrupt, asyncio.CancelledError))[1] is not None:
            raise
        ending = Ending(is_finished=False)
    except (BackendError, StorageError) as error:
        ending = Ending(is_finished=False, failure=error)
    except InvalidSetup:
        measurement.directory.leave()
        raise
    else:
        ending = Ending(is_finished=not session.is_stopped)
    if not (measurement.directory.path / "manifest.json").exists():
        measurement.directory.leave()
    return ending
