"""`draftwise watch`: whether speculation helps a service now, from the counters that its servers show."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwise.core import Finding, InvalidSetup, Severity, UnreadableSource, Window

if TYPE_CHECKING:
    from draftwise.cli._watching import Show
    from draftwise.core import Baseline
    from draftwise.watching.diagnose import SideInfo
    from draftwise.watching.fingerprint import Fingerprint
    from draftwise.watching.rollout import SetupStep
    from draftwise.watching.watcher import Snapshot, Watching

__all__ = ["watch"]

_EXIT_GOOD, _EXIT_FINDING, _EXIT_UNREAD = 0, 1, 3
_UNREAD = "server-unread"
_AS_GIVEN = ("prometheus_url", "model", "log_file", "wants_probe", "own_prompts", "record_file", "since")


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
@click.option("--setup", "setup_file", type=click.Path(path_type=Path), metavar="FILE",
              help="The service's manifest or setup.json: `check` of it tells causes apart.")  # fmt: skip
@click.option("--start-log", type=click.Path(path_type=Path), metavar="FILE",
              help="What a server logged when it started: it tells causes apart.")  # fmt: skip
@click.option("--probe", "wants_probe", is_flag=True,
              help="Ask every URL a few prompts at temperature 0: are engine and drafter the baseline's?")  # fmt: skip
@click.option("--workload", "own_prompts", metavar="SPEC", help="Prompts of your own for the probe, beside 24 bundled.")
@click.option("--record-baseline", "record_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write how the service is now: one window, and the probe four times.")  # fmt: skip
@click.option("--since-rollout", "since", metavar="TIME|last",
              help="With --prometheus: hold now against the minutes before a roll-out.")  # fmt: skip
@click.option("--setup-before", "before_file", type=click.Path(path_type=Path), metavar="FILE",
              help="The setup before the roll-out: what `upgrade` says of the step to --setup.")  # fmt: skip
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
    make_show = partial(_make_show, request, as_json=as_json, live=live)
    snapshot = (
        _see_log(request, make_show()) if request.log_file else asyncio.run(_watch(request, make_show, interval_s))
    )
    sys.exit(_judge(snapshot))


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
    asked: SideInfo | None
    since: str | None
    step: SetupStep | None
    """From the setup before a roll-out to today's."""


def _read_request(given: Mapping[str, Any]) -> _Request:
    """Return what is asked for.

    Raises:
        UsageError: parts of it do not go together.
        InvalidSetup: the baseline cannot be read, or a header is none.
    """
    from draftwise.cli._access import read_headers
    from draftwise.measure.access import find_headers

    headers, baseline_file = read_headers(given), given["baseline_file"]
    step = _compare_setups(given["before_file"], given["setup_file"])
    pools = {"spec": given["urls"], "plain": given["plain_urls"]}
    request = _Request(
        urls=pools,
        headers={pool: find_headers(headers, pool) for pool in pools},
        baseline=None if baseline_file is None else _read_baseline(baseline_file),
        once=given["once"] or given["wants_probe"] or any(given[name] for name in ("record_file", "since", "log_file")),
        asked=_read_asked(given["setup_file"], given["start_log"], step),
        step=step,
        **{name: given[name] for name in _AS_GIVEN},
    )
    _check(request)
    owner = given["before_file"] or given["setup_file"]
    if request.baseline is not None and owner is not None:
        _check_owner(request.baseline, owner)
    return request


def _read_baseline(path: Path) -> Baseline:
    from draftwise.cli._baseline import read_baseline

    return read_baseline(path)


def _read_asked(setup_file: Path | None, start_log: Path | None, step: SetupStep | None) -> SideInfo | None:
    """Return what files say of the service; what reads a setup takes as long to import as all the rest."""
    if setup_file is None and start_log is None:
        return None
    from draftwise.watching.configured import read_side_info

    asked = read_side_info(setup_file, start_log)
    return asked if step is None else replace(asked, releases=step.releases)


def _compare_setups(before: Path | None, after: Path | None) -> SetupStep | None:
    if before is None:
        return None
    if after is None:
        raise click.UsageError("--setup-before is compared with --setup: give that, too.")
    from draftwise.watching.rollout import compare_setups

    return compare_setups(before, after)


def _check(request: _Request) -> None:
    urls = bool(request.urls["spec"]) and not (request.wants_probe and request.since)
    if urls + bool(request.prometheus_url) + bool(request.log_file) != 1:
        raise click.UsageError(
            "Give the URLs of servers, or --prometheus, or --log. Only --since-rollout with --probe takes two: "
            "--prometheus for what was recorded, and the URLs to ask."
        )
    if (request.wants_probe or request.record_file) and not request.urls["spec"]:
        raise click.UsageError("--probe and --record-baseline ask servers: give their URLs.")
    if request.since is not None and request.prometheus_url is None:
        raise click.UsageError("--since-rollout reads what was recorded before: give --prometheus.")
    if request.wants_probe and (request.baseline is None or not request.baseline.probe):
        raise click.UsageError("--probe compares: give a --baseline with a probe, as --record-baseline writes it.")


def _make_show(request: _Request, *, as_json: bool, live: bool) -> Show:
    from draftwise.cli._watching import JsonShow, LiveShow, TextShow
    from draftwise.watching.yardstick import Yardstick

    yardstick = Yardstick(baseline=request.baseline)
    has_plain = bool(request.urls["plain"] or request.prometheus_url)
    unanswered = tuple(yardstick.list_unanswered(has_plain=has_plain, has_probe=request.wants_probe))
    if live:
        return LiveShow(yardstick, unanswered)
    make = JsonShow if as_json else TextShow
    return make(yardstick, unanswered, once=request.once)


def _check_owner(baseline: Baseline, setup_file: Path) -> None:
    """Refuse the baseline of another setup than the setup.json that is given; a manifest has no digest to compare."""
    digest = sha256(setup_file.read_bytes()).hexdigest()
    if setup_file.suffix == ".json" and baseline.setup_sha256 not in ("", digest):
        raise InvalidSetup.because(
            "baseline-of-other-setup",
            f"The baseline is of another setup than {setup_file}: its numbers say nothing of this one.",
            where="--baseline",
            fix="Give the baseline.json that lies beside the setup, or leave --setup out.",
        )


def _see_log(request: _Request, show: Show) -> Snapshot:
    from draftwise.cli._diagnosing import add_diagnoses
    from draftwise.watching.log import see_log

    name = request.log_file or ""
    try:
        with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8", errors="replace") as lines:
            snapshot = see_log(lines, name="stdin" if name == "-" else name)
    except OSError as error:
        raise _unreadable(name, error) from None
    snapshot = add_diagnoses(snapshot, request.baseline, request.asked)
    with show.open():
        show.show(snapshot)
    return snapshot


def _unreadable(name: object, error: Exception) -> InvalidSetup:
    return UnreadableSource.because("unreadable-file", f"{name} cannot be read ({error}).", where=str(name))


def _open(request: _Request) -> Watching:
    """Return what tells what the service does: its servers' pages, or a Prometheus."""
    if request.prometheus_url is not None:
        from draftwise.watching.prometheus import PrometheusWatcher

        return PrometheusWatcher(request.prometheus_url, model=request.model, headers=request.headers["spec"])
    from draftwise.watching.watcher import Watcher, open_pages

    return Watcher(open_pages(request.urls, request.headers))


async def _watch(request: _Request, make_show: Callable[[], Show], interval_s: float) -> Snapshot | None:
    """Show what is seen until the operator ends it, and return the last of it.

    The first look is taken before all else: what shows and judges it is imported while the interval passes.
    """
    snapshot = None
    watching = _open(request)
    with suppress(asyncio.CancelledError):
        await watching.begin()
        show = make_show()
        with show.open():
            async with aclosing(watching.snapshots(interval_s)) as snapshots:
                async for seen in snapshots:
                    snapshot = await _judge_sight(request, watching, seen)
                    show.show(snapshot)
                    if request.once:
                        break
    return snapshot


async def _judge_sight(request: _Request, watching: Watching, snapshot: Snapshot) -> Snapshot:
    """Return what was seen with what is wrong, by all that was given and asked beside the counters."""
    from draftwise.cli._diagnosing import add_diagnoses

    findings, fingerprints = await _ask(request, snapshot)
    notes, earlier, snapshot = await _look_back(request, watching, snapshot)
    whole = replace(snapshot, findings=(*snapshot.findings, *findings, *notes))
    return add_diagnoses(whole, request.baseline, request.asked, fingerprints, earlier)


async def _look_back(
    request: _Request, watching: Watching, snapshot: Snapshot
) -> tuple[tuple[Finding, ...], Window | None, Snapshot]:
    """Return what changed with a roll-out, the window before it and what is seen since, where that is asked for."""
    about_step = () if request.step is None else request.step.findings
    if request.since is None or snapshot.findings:
        return about_step, None, snapshot
    from draftwise.watching.prometheus import PrometheusWatcher
    from draftwise.watching.rollout import parse_time, tell_rollout

    assert isinstance(watching, PrometheusWatcher), "checked with the options"
    rollout, windows = await watching.look_before(parse_time(request.since))
    if rollout is not None:
        snapshot = await watching.look(since_s=rollout.ended_s)
    before, after = (
        Window.pooled(each for each in side if each.pool != "plain") for side in (windows, snapshot.recent)
    )
    return (tell_rollout(rollout, before, after), *about_step), before, snapshot


async def _ask(request: _Request, snapshot: Snapshot) -> tuple[tuple[Finding, ...], tuple[Fingerprint, ...]]:
    """Return what the servers answer to the probe, where it is wanted, and the fingerprints of these answers."""
    unread = {finding.where for finding in snapshot.findings}
    if not (request.wants_probe or request.record_file):
        return (), ()
    from draftwise.cli._probing import load_prompts, probe_servers, record
    from draftwise.watching.watcher import name_server

    urls = [url for url in map(name_server, request.urls["spec"]) if url not in unread]
    prompts, headers = load_prompts(request.own_prompts), request.headers["spec"]
    findings: tuple[Finding, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    if request.wants_probe and request.baseline is not None:
        judged = await probe_servers(urls, prompts, request.baseline, headers)
        findings = tuple(finding for finding, _ in judged)
        fingerprints = tuple(each for _, each in judged if each is not None)
    if request.record_file is not None and urls:
        window = Window.pooled(snapshot.of("spec"))
        findings += (await record(request.record_file, urls[0], prompts, window, request.baseline, headers),)
    return findings, fingerprints


def _judge(snapshot: Snapshot | None) -> int:
    """Return the exit code of what was seen last."""
    findings: Sequence[Finding] = () if snapshot is None else snapshot.findings
    if any(finding.code == _UNREAD for finding in findings):
        return _EXIT_UNREAD
    return _EXIT_FINDING if any(each.severity is not Severity.INFO for each in findings) else _EXIT_GOOD
