"""`ui`: shows your runs in a browser on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, ClassVar

from draftwise.core import InvalidSetup
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, verb
from draftwise.version import tell_install


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
    """Where the pages are."""

    VERB: ClassVar[str] = "ui"
    address: str
    token: str
    """Requests that change something send it as `x-csrf-token`."""


@verb(UiRequest)
def ui(request: UiRequest, progress: Progress) -> UiResult:
    """Show runs, comparisons, forecasts and running services in a browser, until SIGINT or SIGTERM.

    Listens on 127.0.0.1 only, starts no server, and writes only the report of a run that you ask for. Once it listens,
    the result goes to `progress.update`.
    """
    given = [request.runs] if isinstance(request.runs, (str, PathLike)) else list(request.runs)
    folders = [Path(each) for each in given] or [Path.cwd()]
    for folder in folders:
        if not folder.is_dir():
            raise InvalidSetup.because("no-such-file", f"There is no folder {folder}.", where=str(folder))
    try:
        from draftwise.verbs.pages.pages_app import serve
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise refusal("ui-not-installed", name=name, install=tell_install("ui")) from None
    token = secrets.token_urlsafe(24)

    def tell(address: str) -> None:
        progress.update(UiResult(address=address, token=token))

    return UiResult(address=serve(folders, request.port, token, progress, tell), token=token)
