"""`draftwise watch`: judges whether speculation helps a service now, from its servers' counters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from draftwise.cli._options import Duration
from draftwise.core.progress import Silent
from draftwise.verbs.watch import WatchRequest
from draftwise.verbs.watch import watch as run_watch

if TYPE_CHECKING:
    from rich.console import Console

    from draftwise.cli._watching import Show
    from draftwise.verbs.watch import WatchResult


@click.command(short_help="See whether speculation helps a running service, from its counters.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--plain", multiple=True, metavar="URL",
              help="Server of the same model without speculation, for comparison.")  # fmt: skip
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE",
              help="baseline.json of `draftwise deploy`: the measured values and the break-even.")  # fmt: skip
@click.option("--once", is_flag=True, help="Read one window, then exit.")
@click.option("--interval", "interval_s", type=Duration(0.2, 3600), default=10.0, show_default=True,
              metavar="SECONDS", help="Time between two readings.")  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: one object per reading, one per line without --once."
)
@click.option("--live", is_flag=True, help="Keep one row per pool up to date until Ctrl-C.")
@click.option("--prometheus", metavar="URL", help="Read the servers' history from this Prometheus.")
@click.option("--service", metavar="NAME",
              help="With --prometheus: the service's `service` label; without it, all are listed.")  # fmt: skip
@click.option("--namespace", metavar="NAME", help="With --prometheus: the service's namespace label.")
@click.option("--model", metavar="NAME", help="With --prometheus: the service's model_name label.")
@click.option("--log", metavar="FILE|-", help="Read the statistics in a vLLM log, to its end.")
@click.option("--setup", type=click.Path(path_type=Path), metavar="FILE",
              help="The service's manifest, as for `check`, or setup.json: narrows down causes.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="A server's start-up log: narrows down causes.")  # fmt: skip
@click.option("--probe", is_flag=True,
              help="Send a few prompts at temperature 0 to compare engine and drafter with the baseline.")  # fmt: skip
@click.option("--workload", metavar="SPEC", help="Your own prompts for the probe, in addition to 24 bundled ones.")
@click.option("--record-baseline", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Record the service's state now: one window, and the probe four times.")  # fmt: skip
@click.option("--since-rollout", metavar="TIME|last",
              help="With --prometheus: compare now with the minutes before a roll-out.")  # fmt: skip
@click.option("--setup-before", type=click.Path(path_type=Path), metavar="FILE",
              help="Setup before the roll-out: adds what `upgrade` reports for the change to --setup.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="[POOL=]'NAME: VALUE'",
              help="Header for the URLs; ${VARIABLE} is expanded. POOL is spec or plain.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="[POOL=]NAME",
              help="Environment variable with the API key of the URLs.")  # fmt: skip
def watch(*, as_json: bool, live: bool, **given: Any) -> None:
    """Show what speculation does for a running service: over one interval, then over the last five minutes.

    URL is a server or its metrics page; several URLs are replicas of one service. draftwise reads only that page, and
    computes its readings from how much the counters grow.

    The exit code is 0 if nothing was found, 1 if something was, and 3 if a server cannot be read.

    With --prometheus and several services, it shows a table of them, the costliest first.

    \b
    Examples:
      draftwise watch http://llama-0:8000 http://llama-1:8000 --plain http://llama-plain:8000 --once
      draftwise watch http://llama:8000 --baseline deploy/baseline.json --live
      draftwise watch --prometheus http://prometheus:9090 --service llama --baseline deploy/baseline.json --once
      kubectl logs deployment/llama | draftwise watch --log -
    """
    if as_json and live:
        raise click.UsageError("Give --json or --live, not both.")
    with _Looks(as_json=as_json, live=live) as looks:
        result = run_watch.run(WatchRequest(**given), looks)
    if result.exit_code:
        sys.exit(result.exit_code)


def render(console: Console, result: WatchResult) -> None:
    """Print one look."""
    from draftwise.cli._watching import TextShow

    TextShow(console).show(result)


class _Looks(Silent):
    """Shows each look; what shows it is imported when the first one comes, while the servers' interval has passed."""

    def __init__(self, *, as_json: bool, live: bool) -> None:
        self._as_json, self._live = as_json, live
        self._show: Show | None = None

    def update(self, result: object) -> None:
        """Show a look."""
        if self._show is None:
            self._show = self._open()
        self._show.show(cast("WatchResult", result))

    def _open(self) -> Show:
        from draftwise.cli import _watching

        if self._as_json:
            return _watching.JsonShow()
        console = _watching.open_console(stderr=False)
        return _watching.LiveShow(console) if self._live else _watching.TextShow(console)

    def __enter__(self) -> _Looks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._show is not None:
            self._show.close()
