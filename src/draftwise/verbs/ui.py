"""`ui`: shows your runs in a browser on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import InvalidSetup
from draftwise.core.progress import Progress
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, verb


@dataclass(frozen=True, slots=True)
class UiRequest:
    """Runs to show, and where."""

    runs: str | PathLike[str] | Sequence[str | PathLike[str]] = ()
    """Run directories, or folders that hold them; default: the current folder."""
    _: KW_ONLY
    port: Annotated[int, Range(0, 65535)] = 8765
    """Port on 127.0.0.1; 0 for a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UiResult(Result):
    """A server that has ended."""

    VERB: ClassVar[str] = "ui"
    address: str


@verb(UiRequest)
def ui(request: UiRequest, progress: Progress) -> UiResult:
    """Show runs, comparisons, forecasts and running services in a browser, until SIGINT or SIGTERM.

    It listens on 127.0.0.1 only, starts nothing, and writes nothing but the report of a run that you ask for.
    """
    given = [request.runs] if isinstance(request.runs, (str, PathLike)) else list(request.runs)
    folders = [Path(each) for each in given] or [Path.cwd()]
    for folder in folders:
        if not folder.is_dir():
            raise InvalidSetup.because("no-such-file", f"There is no folder {folder}.", where=str(folder))
    try:
        from draftwise.verbs.pages.pages_app import serve
    except ImportError as error:
        raise InvalidSetup.because(
            "ui-not-installed",
            f"The pages need {error.name}, which is not installed.",
            fix="Run: pip install 'draftwise[ui]'",
        ) from None
    return UiResult(address=serve(folders, request.port, progress))
