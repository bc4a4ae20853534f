"""`draftwise watch`: judges whether speculation helps a service now, from its servers' counters."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click

from draftwise.cli._options import Duration, options
from draftwise.core.progress import Silent
from draftwise.verbs.watch import WatchRequest
from draftwise.verbs.watch import watch as run_watch

if TYPE_CHECKING:
    from rich.console import Console

    from draftwise.cli._watching import Show
    from draftwise.verbs.watch import WatchResult


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@options("watch", of=WatchRequest, interval_s=Duration(0.2, 3600))
def watch(*, as_json: bool, live: bool, **given: Any) -> None:
    """Show what speculation does for a running service: over one interval, then over the last five minutes."""
    if as_json and live:
        raise click.UsageError("Give --json or --live, not both.")
    with closing(_Looks(as_json=as_json, live=live)) as looks:
        result = run_watch.run(WatchRequest(**given), looks)
    if result.exit_code:
        sys.exit(result.exit_code)


def render(console: Console, result: WatchResult) -> None:
    """Print one reading."""
    from draftwise.cli._watching import TextShow

    TextShow(console).show(result)


class _Looks(Silent):
    """Shows each look; what shows it is imported when the first one comes, while the servers' interval has passed."""

    def __init__(self, *, as_json: bool, live: bool) -> None:
        self._as_json, self._live = as_json, live
        self._show: Show | None = None

    def update(self, result: object) -> None:
        """Show a look; as JSON on one line, or indented if it is the only one."""
        look = cast("WatchResult", result)
        if self._as_json:
            click.echo(json.dumps(look.to_dict(), indent=1 if look.is_only else None, allow_nan=False))
            return
        if self._show is None:
            self._show = self._open()
        self._show.show(look)

    def _open(self) -> Show:
        from draftwise.cli import _watching

        console = _watching.open_console(stderr=False)
        return _watching.LiveShow(console) if self._live else _watching.TextShow(console)

    def close(self) -> None:
        """End what shows the looks."""
        if self._show is not None:
            self._show.close()
