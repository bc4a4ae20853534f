"""`draftwise watch`: whether speculation helps a service now, from the counters that its servers show."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwise.cli._baseline import read_baseline
from draftwise.core import Baseline, Finding, InvalidSetup, Severity, UnreadableSource

if TYPE_CHECKING:
    from draftwise.cli._watching import Show
    from draftwise.watch.diagnose import Asked
    from draftwise.watch.fingerprint import Fingerprint
    from draftwise.watch.watcher import Sight, Watching

__all__ = ["watch"]

_EXIT_GOOD, _EXIT_FINDING, _EXIT_UNREAD = 0, 1, 3
_UNREAD = "server-unread"
_AS_GIVEN = ("prometheus_url", "model", "log_file", "wants_probe", "own_prompts", "record_file")


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
@click.option("--prometheus", "prometheus_url", metavar="URL", help="Read what this Prometheus recorded of servers.")
@click.option("--model", metavar="NAME", help="Label model_name of the service, with --prometheus.")
@click.option("--log", "log_file", metavar="FILE|-", help="Read the statistics that vLLM logs, to the end of the file.")
@click.option("--probe", "wants_probe", is_flag=True,
              help="Ask every URL a few prompts at temperature 0: are engine and drafter the baseline's?")  # fmt: skip
@click.option("--workload", "own_prompts", metavar="SPEC", help="Prompts of your own for the probe, beside 24 bundled.")
@click.option("--record-baseline", "record_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Write how the service is now: one window, and the probe four times.")  # fmt: skip
@click.option("--setup", "setup_file", type=click.Path(path_type=Path), metavar="FILE",
              help="setup.json of the servers: `draftwise check` of it tells causes apart.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="What a server logged when it started: it tells causes apart.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="[POOL=]'NAME: VALUE'",
              help="Sent to the URLs; ${VARIABLE} is replaced. POOL is spec or plain.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="[POOL=]NAME",
              help="Variable that holds the key of the URLs.")  # fmt: skip
def watch(*, interval_s: float, as_json: bool, live: bool, **given: Any) -> None:
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
    request = _read_request(given)
    show = _make_show(request, as_json=as_json, live=live)
    with show.open():
        sight = _see_log(request, show) if request.log_file else asyncio.run(_watch(request, show, interval_s))
    sys.exit(_judge(sight))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What the command line asks for."""

    urls: Mapping[str, Sequence[str]]
    """By pool."""
    headers: Mapping[str, Mapping[str, str]]
    baseline: Baseline | None
    once: bool
    prometheus_url: str | None
    model: str | None
    log_file: str | None
    wants_probe: bool
    own_prompts: str | None
    record_file: Path | None
    asked: Asked


def _read_request(given: Mapping[str, Any]) -> _Request:
    """Return what is asked for.

    Raises:
        UsageError: parts of it do not go together.
        InvalidSetup: the baseline cannot be read, or a header is none.
    """
    from draftwise.cli._access import read_headers
    from draftwise.cli._diagnosing import read_asked
    from draftwise.measure.access import find_headers

    headers, baseline_file = read_headers(given), given["baseline_file"]
    pools = {"spec": given["urls"], "plain": given["plain_urls"]}
    request = _Request(
        urls=pools,
        headers={pool: find_headers(headers, pool) for pool in pools},
        baseline=None if baseline_file is None else read_baseline(baseline_file),
        once=given["once"] or bool(given["record_file"] or given["log_file"]),
        asked=read_asked(given["setup_file"], given["start_log"]),
        **{name: given[name] for name in _AS_GIVEN},
    )
    _check(request)
    return request


def _check(request: _Request) -> None:
    if sum(map(bool, (request.urls["spec"], request.log_file, request.prometheus_url))) != 1:
        raise click.UsageError("Give the URLs of servers, or --prometheus, or --log.")
    if (request.wants_probe or request.record_file) and not request.urls["spec"]:
        raise click.UsageError("--probe and --record-baseline ask servers: give their URLs.")
    if request.wants_probe and not request.once:
        raise click.UsageError("--probe goes with --once: it asks, and later windows would count its answers.")
    if request.wants_probe and (request.baseline is None or not request.baseline.probe):
        raise click.UsageError("--probe compares: give a --baseline with a probe, as --record-baseline writes it.")


def _make_show(request: _Request, *, as_json: bool, live: bool) -> Show:
    from draftwise.cli._watching import JsonShow, LiveShow, TextShow
    from draftwise.watch.yardstick import Yardstick

    yardstick = Yardstick(baseline=request.baseline)
    has_plain = bool(request.urls["plain"] or request.prometheus_url)
    unanswered = tuple(yardstick.list_unanswered(has_plain=has_plain, has_probe=request.wants_probe))
    if live:
        return LiveShow(yardstick, unanswered)
    make = JsonShow if as_json else TextShow
    return make(yardstick, unanswered, once=request.once)


def _see_log(request: _Request, show: Show) -> Sight:
    from draftwise.cli._diagnosing import add_diagnoses
    from draftwise.watch.log import see_log

    name = request.log_file or "-"
    try:
        with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8", errors="replace") as lines:
            sight = see_log(lines, name="stdin" if name == "-" else name)
    except OSError as error:
        raise _unreadable(name, error) from None
    sight = add_diagnoses(sight, request.baseline, request.asked)
    show.show(sight)
    return sight


def _unreadable(name: object, error: Exception) -> InvalidSetup:
    return UnreadableSource.because("unreadable-file", f"{name} cannot be read ({error}).", where=str(name))


def _open(request: _Request) -> Watching:
    """Return what tells what the service does: its servers' pages, or a Prometheus."""
    if request.prometheus_url is not None:
        from draftwise.watch.prometheus import PrometheusWatcher

        return PrometheusWatcher(request.prometheus_url, model=request.model, headers=request.headers["spec"])
    from draftwise.watch.pages import open_pages
    from draftwise.watch.watcher import Watcher

    return Watcher(open_pages(request.urls, request.headers))


async def _watch(request: _Request, show: Show, interval_s: float) -> Sight | None:
    """Show what is seen until the operator ends it, and return the last of it."""
    sight = None
    with suppress(asyncio.CancelledError):
        async with aclosing(_open(request).sights(interval_s)) as sights:
            async for seen in sights:
                sight = await _judge_sight(request, seen)
                show.show(sight)
                if request.once:
                    break
    return sight


async def _judge_sight(request: _Request, sight: Sight) -> Sight:
    """Return what was seen with what the servers answer to the probe, and what is wrong."""
    from draftwise.cli._diagnosing import add_diagnoses

    if not (request.wants_probe or request.record_file):
        return add_diagnoses(sight, request.baseline, request.asked)
    sight, fingerprints = await _ask(request, sight)
    return add_diagnoses(sight, request.baseline, request.asked, fingerprints)


async def _ask(request: _Request, sight: Sight) -> tuple[Sight, Sequence[Fingerprint]]:
    """Return what was seen with what the servers answer to the probe, and the fingerprints of these answers."""
    from draftwise.cli._probing import load_prompts, probe_servers, record
    from draftwise.core import Window

    unread = {finding.where for finding in sight.findings}
    urls = [url for url in request.urls["spec"] if url.rstrip("/") not in unread]
    prompts, headers = load_prompts(request.own_prompts), request.headers["spec"]
    found, fingerprints = sight.findings, []
    if request.wants_probe and request.baseline is not None:
        judged = await probe_servers(urls, prompts, request.baseline, headers)
        found += tuple(finding for finding, _ in judged)
        fingerprints += [each for _, each in judged if each is not None]
    if request.record_file is not None and urls:
        window = Window.pooled(sight.of("spec"))
        found += (await record(request.record_file, urls[0], prompts, window, request.baseline, headers),)
    return replace(sight, findings=found), fingerprints


def _judge(sight: Sight | None) -> int:
    """Return the exit code of what was seen last."""
    findings: Sequence[Finding] = () if sight is None else sight.findings
    if any(finding.code == _UNREAD for finding in findings):
        return _EXIT_UNREAD
    return _EXIT_FINDING if any(each.severity is not Severity.INFO for each in findings) else _EXIT_GOOD
