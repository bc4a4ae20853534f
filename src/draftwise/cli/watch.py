"""`draftwise watch`: whether speculation helps a service now, from the counters that its servers show."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwise.core import Baseline, Finding, Severity, UnreadableSource

if TYPE_CHECKING:
    from draftwise.cli._watching import Show
    from draftwise.watch.watcher import Sight, Watching

__all__ = ["watch"]

_EXIT_GOOD, _EXIT_FINDING, _EXIT_UNREAD = 0, 1, 3
_UNREAD = "server-unread"


@click.command(short_help="Is speculation helping a running service now? From its counters.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--plain", "plain_urls", multiple=True, metavar="URL",
              help="A server of the same model without speculation, to compare with.")  # fmt: skip
@click.option("--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
              help="baseline.json of `draftwise deploy`: what was measured, and where it stops paying.")  # fmt: skip
@click.option("--once", is_flag=True, help="One window, then the exit code.")
@click.option("--interval", "interval_s", type=click.FloatRange(min=0.2), default=10.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object a look, each on one line without --once.")
@click.option("--live", is_flag=True, help="One row a pool, kept up to date; Ctrl-C ends it.")
@click.option(
    "--prometheus", "prometheus_url", metavar="URL", help="Read what this Prometheus recorded of the servers."
)
@click.option("--model", metavar="NAME", help="Label model_name of the service, with --prometheus.")
@click.option("--log", "log_file", metavar="FILE|-", help="Read the statistics that vLLM logs, to the end of the file.")
@click.option("--header", "headers", multiple=True, metavar="[POOL=]'NAME: VALUE'",
              help="Sent to the URLs; ${VARIABLE} is replaced. POOL is spec or plain.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="[POOL=]NAME",
              help="Variable that holds the key of the URLs.")  # fmt: skip
def watch(
    urls: Sequence[str],
    plain_urls: Sequence[str],
    baseline_file: Path | None,
    once: bool,
    interval_s: float,
    as_json: bool,
    live: bool,
    **given: Any,
) -> None:
    """Say what speculation does for a service that runs: over one interval, then over the last five minutes.

    URL is a server, or its page of counters; several are replicas of one service. Nothing is asked of them but that
    page. Readings are ratios of what its counters grew by between two looks.

    The exit code is 0 if nothing was found, 1 if something was, and 3 if a server cannot be read.

    \b
    Examples:
      draftwise watch http://llama-0:8000 http://llama-1:8000 --plain http://llama-plain:8000 --once
      draftwise watch http://llama:8000 --baseline deploy/baseline.json --live
      draftwise watch --prometheus http://prometheus:9090 --model llama --baseline deploy/baseline.json --once
      kubectl logs deployment/llama | draftwise watch --log -
    """
    if as_json and live:
        raise click.UsageError("Give --json or --live, not both.")
    log_file, prometheus_url = given["log_file"], given["prometheus_url"]
    if sum(map(bool, (urls, log_file, prometheus_url))) != 1:
        raise click.UsageError("Give the URLs of servers, or --prometheus, or --log.")
    has_plain = bool(plain_urls or prometheus_url)
    show = _make_show(baseline_file, once=once or bool(log_file), as_json=as_json, live=live, has_plain=has_plain)
    with show.open():
        if log_file:
            show.show(sight := _read_log(log_file))
        else:
            watching = _open(urls, plain_urls, given)
            sight = asyncio.run(_watch(watching, show, interval_s, once=once))
    sys.exit(_judge(sight))


def _make_show(path: Path | None, *, once: bool, as_json: bool, live: bool, has_plain: bool) -> Show:
    from draftwise.cli._watching import JsonShow, LiveShow, TextShow
    from draftwise.watch.yardstick import Yardstick

    yardstick = Yardstick(baseline=None if path is None else _read_baseline(path))
    unanswered = tuple(yardstick.list_unanswered(has_plain=has_plain, has_probe=False))
    if live:
        return LiveShow(yardstick, unanswered)
    return JsonShow(yardstick, unanswered, once=once) if as_json else TextShow(yardstick, unanswered, once=once)


def _read_baseline(path: Path) -> Baseline:
    try:
        return Baseline.from_json(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource.because(
            "unreadable-file", f"{path} cannot be read ({error}).", where=str(path)
        ) from None


def _read_log(name: str) -> Sight:
    from draftwise.watch.log import see_log

    try:
        with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8", errors="replace") as lines:
            return see_log(lines, name="stdin" if name == "-" else name)
    except OSError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: object, error: Exception) -> UnreadableSource:
    return UnreadableSource.because("unreadable-file", f"{name} cannot be read ({error}).", where=str(name))


def _open(urls: Sequence[str], plain_urls: Sequence[str], given: Mapping[str, Any]) -> Watching:
    """Return what tells what the service does: its servers' pages, or a Prometheus."""
    from draftwise.cli._access import read_headers
    from draftwise.measure.access import find_headers

    headers = read_headers(given)
    if given["prometheus_url"]:
        from draftwise.watch.prometheus import PrometheusWatcher

        return PrometheusWatcher(given["prometheus_url"], model=given["model"], headers=find_headers(headers, "spec"))
    from draftwise.watch.pages import open_pages
    from draftwise.watch.watcher import Watcher

    pools = {"spec": tuple(urls), "plain": tuple(plain_urls)}
    return Watcher(open_pages(pools, {pool: find_headers(headers, pool) for pool in pools}))


async def _watch(watching: Watching, show: Show, interval_s: float, *, once: bool) -> Sight | None:
    """Show what is seen until the operator ends it, and return the last of it."""
    sight = None
    with suppress(asyncio.CancelledError):
        async with aclosing(watching.sights(interval_s)) as sights:
            async for sight in sights:
                show.show(sight)
                if once:
                    break
    return sight


def _judge(sight: Sight | None) -> int:
    """Return the exit code of what was seen last."""
    findings: Sequence[Finding] = () if sight is None else sight.findings
    if any(finding.code == _UNREAD for finding in findings):
        return _EXIT_UNREAD
    return _EXIT_FINDING if any(each.severity is not Severity.INFO for each in findings) else _EXIT_GOOD
