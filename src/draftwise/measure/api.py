"""The verb `decide` from Python."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from draftwise.core import Decision, Progress, Silent, Stopped
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.measurement import prepare
from draftwise.measure.spec import MeasurementSpec
from draftwise.reporting.page import write_report
from draftwise.reporting.sentences import describe_decision

__all__ = ["Decided", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What came out of a measurement, and where all of it is."""

    decision: Decision
    sentence: str
    """The decision in words."""
    directory: Path
    is_finished: bool = True
    """False if it was stopped before everything was measured: `draftwise decide --resume` goes on."""


def decide(spec: MeasurementSpec, progress: Progress | None = None) -> Decided:
    """Measure whether speculation pays, write the report and return the decision.

    Args:
        spec: what to measure.
        progress: receives what is done, and may ask to stop; None for nobody.

    Raises:
        InvalidSetup: the options contradict each other, name what is not there, or a release refuses a setup.
        BackendError: a server failed; what was measured is in the directory, and `draftwise decide --resume` goes on.
        StorageError: the disk is full; the same.
        Stopped: the progress asked to stop before anything was measured.
    """
    progress = progress or Silent()
    measurement = prepare(spec, progress)
    session = measurement.open(progress)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(session.run())
    if session.is_stopped and not measurement.directory.has_run:
        measurement.directory.leave()
        raise Stopped
    decision, _ = write_report(measurement.directory)
    return Decided(
        decision=decision,
        sentence=describe_decision(decision),
        directory=measurement.directory.path,
        is_finished=not session.is_stopped,
    )
