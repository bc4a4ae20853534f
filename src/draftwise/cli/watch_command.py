"""`draftwise watch`: judges whether speculation helps a service now, from its servers' counters."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click

from draftwise.cli._options import FILE, PATH, Duration, option
from draftwise.core.progress import Silent
from draftwise.verbs.watch import WatchRequest
from draftwise.verbs.watch import watch as run_watch

if TYPE_CHECKING:
    from rich.console import Console

    from draftwise.cli._watching import Show
    from draftwise.verbs.watch import WatchResult


@click.command(short_help="See whether speculation helps a running service, from its counters.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@option("--plain URL", "Server of the same model without speculation, for comparison.", multiple=True)
@option("--baseline FILE", "baseline.json of `draftwise deploy`: the measured values and the break-even.", type=PATH)
@option("--once", "Read one window, then exit.", is_flag=True)
@option("--interval SECONDS", "interval_s", "Time between two readings.",
        type=Duration(0.2, 3600), default=10.0, show_default=True)  # fmt: skip
@option("--json", "as_json", "Print JSON: one object per reading, one per line without --once.", is_flag=True)
@option("--live", "Keep one row per pool up to date until Ctrl-C.", is_flag=True)
@option("--prometheus URL", "Read the servers' history from this Prometheus.")
@option("--service NAME", "With --prometheus: the service's `service` label; without it, all are listed.")
@option("--namespace NAME", "With --prometheus: the service's namespace label.")
@option("--model NAME", "With --prometheus: the service's model_name label.")
@option("--log FILE|-", "Read the statistics in a vLLM log, to its end.")
@option("--setup FILE", "The service's manifest, as for `check`, or setup.json: narrows down causes.", type=PATH)
@option("--start-log FILE", "A server's start-up log: narrows down causes.", type=PATH)
@option("--probe", "Send a few prompts at temperature 0 to compare engine and drafter with the baseline.", is_flag=True)
@option("--workload SPEC", "Your own prompts for the probe, in addition to 24 bundled ones.")
@option("--record-baseline FILE", "Record the service's state now: one window, and the probe four times.", type=FILE)
@option("--since-rollout TIME|last", "With --prometheus: compare now with the minutes before a roll-out.")
@option("--setup-before FILE", "Setup before the roll-out: adds what `upgrade` reports for the change to --setup.",
        type=PATH)  # fmt: skip
@option("--header [POOL=]'NAME: VALUE'", "headers",
        "Header for the URLs; ${VARIABLE} is expanded. POOL is spec or plain.", multiple=True)  # fmt: skip
@option("--api-key-env [POOL=]NAME", "key_variables", "Environment variable with the API key of the URLs.",
        multiple=True)  # fmt: skip
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

    def close(self) -> None:
        """End what shows the looks."""
        if self._show is not None:
            self._show.close()
