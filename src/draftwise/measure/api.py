"""The verb `decide` from Python."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from draftwise.core import Decision, RunPlan
from draftwise.measure.experiment import NoProgress
from draftwise.measure.forecast import Pace
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


def decide(spec: MeasurementSpec) -> Decided:
    """Measure whether speculation pays, write the report and return the decision.

    Raises:
        InvalidSetup: the options contradict each other, name what is not there, or a release refuses a setup.
        BackendError: a server failed; what was measured is in the directory, and `draftwise decide --resume` goes on.
        StorageError: the disk is full; the same.
    """
    measurement = prepare(spec, _ignore)
    session = measurement.open(NoProgress(), tell=_ignore, announce=_announce)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(session.run())
    decision, _ = write_report(measurement.directory)
    return Decided(decision=decision, sentence=describe_decision(decision), directory=measurement.directory.path)


def _ignore(_: str) -> None:
    """Say nothing: a program has nobody to tell."""


def _announce(_plan: RunPlan, _pace: Pace, _seconds: float) -> None:
    """Say nothing of how long it takes."""
