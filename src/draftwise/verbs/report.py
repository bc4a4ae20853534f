"""`report`: makes a run's report again from its raw readings, or exports it for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar

from draftwise.core import StorageError, cause_of
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.deciding.interchange import FORMATS, export_run
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole
from draftwise.measure.run_context import add_notes
from draftwise.runs import RunDirectory
from draftwise.verbs.concluded_runs import ConcludedRun, conclude
from draftwise.verbs.notes import read_notes
from draftwise.verbs.verb import refuse, verb

__all__ = ["FORMATS", "ReportRequest", "ReportResult", "report"]


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A run, and the files to write."""

    run: str | PathLike[str]
    """Run directory of `decide`."""
    _: KW_ONLY
    notes: Mapping[str, str] | Sequence[str] = ()
    """Facts that the servers did not report, by key or as `KEY=VALUE`; added to the run."""
    write: bool = True
    """Whether to write report.html and summary.json; otherwise the run's folder is only read."""
    markdown: str | PathLike[str] | None = None
    """File for the report as Markdown."""
    exports: Mapping[str, str | PathLike[str]] | Sequence[str] = ()
    """Files for the readings in the formats of other tools, by format or as `FORMAT=FILE`; `FILE/` for a file per
    cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult(ConcludedRun):
    """The conclusions of a run."""

    VERB: ClassVar[str] = "report"
    written: tuple[Path, ...] = field(default=(), metadata=HIDDEN)
    """Files that were written in addition to the report."""


@verb(ReportRequest)
def report(request: ReportRequest, _progress: Progress) -> ReportResult:
    """Make report.html and summary.json of a run again, from the raw readings alone."""
    wanted = list(_read_exports(request.exports))
    directory = RunDirectory(Path(request.run))
    if notes := read_notes(request.notes):
        if not request.write:
            refuse("Notes are added to the run, which is only to be read.", where="--context")
        measured = directory.read()
        directory.begin(measured.plan, add_notes(measured, notes))
    result = conclude(ReportResult, directory, writes=request.write)
    written = []
    if request.markdown is not None:
        written.append(Path(request.markdown))
        _write(written[0], result.to_markdown())
    for name, path in wanted:
        written += export_run(result.run, name, path)
    return replace(result, written=tuple(written))


def _read_exports(given: Mapping[str, str | PathLike[str]] | Iterable[str]) -> Iterator[tuple[str, Path]]:
    texts = [f"{name}={path}" for name, path in given.items()] if isinstance(given, Mapping) else given
    for text in texts:
        name, equals, path = text.partition("=")
        if name not in FORMATS or not equals or not path:
            raise refusal("export-format", text=text, names=", ".join(FORMATS))
        # `Path` would drop the slash that asks for a folder.
        if path.endswith("/"):
            try:
                Path(path).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"{path}: cannot be created ({cause_of(error)}). Give another folder.") from None
        yield name, Path(path)


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({cause_of(error)}). Give another path or make room.") from None
