"""The conclusions of a run, which `decide` and `report` return: the summary as JSON, the verdicts as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from draftwise.core import Decision, Run
from draftwise.core.documents import HIDDEN
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.reporting.markdown import render_markdown
from draftwise.reporting.page import write_conclusions
from draftwise.reporting.sentences import describe_decision
from draftwise.reporting.summary import Summary, summarise
from draftwise.runs import RunDirectory
from draftwise.verbs.verb import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcludedRun(Result):
    """A measured run with its decision."""

    JSON_OF: ClassVar[str] = "summary"
    summary: Summary = field(metadata=HIDDEN)
    conclusions: Conclusions = field(metadata=HIDDEN)
    directory: Path = field(metadata=HIDDEN)
    """Run directory, with report.html and summary.json."""

    @property
    def exit_code(self) -> int:
        """1 if there is a finding of severity error."""
        return int(self.decision.has_error)

    @property
    def decision(self) -> Decision:
        """What to run at which load, and when to undo it."""
        return self.conclusions.decision

    @property
    def sentence(self) -> str:
        """The decision in words."""
        return describe_decision(self.decision)

    @property
    def run(self) -> Run:
        """The run, without disturbed turns."""
        return self.conclusions.run

    @property
    def report(self) -> Path:
        """The report as a page."""
        return self.directory / "report.html"

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request."""
        return render_markdown(self.conclusions)


R = TypeVar("R", bound=ConcludedRun)


def conclude(kind: type[R], directory: RunDirectory, *, writes: bool = True) -> R:
    """Return the conclusions of a run; if `writes`, also write its report and summary.

    Raises:
        InvalidSetup: the directory is not a run.
        StorageError: the disk is full.
    """
    found = conclude_run(directory.read())
    summary = write_conclusions(directory, found)[1] if writes else summarise(found)
    return kind(summary=summary, conclusions=found, directory=directory.path)
