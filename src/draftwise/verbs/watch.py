"""`watch`: judges whether speculation helps a service now, from its servers' counters."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from draftwise.core import (
    BackendError,
    Baseline,
    Diagnosis,
    Finding,
    Ruling,
    Severity,
    UnreadableSource,
    Window,
    cause_of,
)
from draftwise.core.documents import HIDDEN
from draftwise.core.exit_codes import ExitCode
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.verbs.field_types import Range
from draftwise.verbs.request_headers import Header, read_headers
from draftwise.verbs.verb import Result, refuse, verb
from draftwise.watching.look_rows import ExpectedRow, PoolRow, describe_pool
from draftwise.watching.watcher import PLAIN, UNREAD, Snapshot
from draftwise.watching.yardstick import Yardstick

if TYPE_CHECKING:
    from draftwise.watching.diagnose import SideInfo
    from draftwise.watching.fingerprint import Fingerprint
    from draftwise.watching.fleet import FleetService
    from draftwise.watching.prometheus import Selection
    from draftwise.watching.rollout import SetupStep
    from draftwise.watching.watcher import Watching

__all__ = ["PLAIN", "UNREAD", "ServiceRow", "Snapshot", "WatchRequest", "WatchResult", "Yardstick", "watch"]

_POOLS = ("spec", "plain")
_STOP_S = 0.5
"""Seconds between two questions whether to stop."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A service: the URLs of its servers, what a Prometheus recorded of it, or a log."""

    urls: str | Sequence[str] = ()
    """URLs of servers, or of their metrics pages; several are replicas of one service."""
    _: KW_ONLY
    plain: Sequence[str] = ()
    """Servers of the same model without speculation, to compare with."""
    baseline: Baseline | str | PathLike[str] | None = None
    """baseline.json of `deploy`, with the measured values and the break-even."""
    once: bool = True
    """Whether to exit after one window; otherwise the verb runs until stopped."""
    interval_s: Annotated[float, Range(0.2, 3600)] = 10.0
    """Seconds between two readings."""
    prometheus: str | None = None
    """URL of a Prometheus that recorded the servers."""
    model: str | None = None
    """Label model_name of the service, with `prometheus`."""
    service: str | None = None
    """Label `service` that `deploy` sets, with `prometheus`; None lists all services."""
    namespace: str | None = None
    """Label `namespace` of the service, with `prometheus`."""
    log: str | PathLike[str] | None = None
    """Log of vLLM with its statistics, `-` for standard input."""
    setup: str | PathLike[str] | None = None
    """The service's manifest or setup.json; judging it helps to tell causes apart."""
    start_log: str | PathLike[str] | None = None
    """Start-up log of a server."""
    probe: bool = False
    """Whether to send every URL a few prompts at temperature 0, to tell whether engine or drafter changed."""
    workload: str | None = None
    """Prompts of your own for the probe, in addition to 24 bundled ones."""
    record_baseline: str | PathLike[str] | None = None
    """File to record the service's current state in: one window, and the probe four times."""
    since_rollout: str | None = None
    """Time of a roll-out, or `last`: compares now with the minutes before it, with `prometheus`."""
    setup_before: str | PathLike[str] | None = None
    """Setup before the roll-out: adds the findings of `upgrade` from it to `setup`."""
    headers: Sequence[Header | str] = ()
    """`[POOL=]NAME: VALUE` for the URLs; ${VARIABLE} stands for an environment variable."""
    key_variables: Sequence[str] = ()
    """`[POOL=]NAME` of environment variables that hold API keys for the URLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRow:
    """One service of several that a Prometheus recorded."""

    namespace: str
    """Empty if not labeled."""
    service: str
    """Label `service`, else the model's name or the job."""
    model: str
    """Label model_name."""
    revisions: tuple[str, ...]
    """Labels `revision` of its servers."""
    servers: int
    """Servers that speculate, or should."""
    plain: int
    """Servers without speculation."""
    tokens_per_step: float | None
    """Tokens per step of the servers that speculate, pooled."""
    break_even: float | None
    """Tokens per step below which speculation does not pay; null if the rules of `deploy` do not record it."""
    output_tokens_per_s: float | None
    """Output tokens a second of the servers that speculate."""
    cost: float | None
    """Capacity that the costliest finding takes, in servers; null without a finding of known loss."""
    findings: tuple[Diagnosis, ...]
    """The costliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult(Result):
    """One reading of a service, or of all services that a Prometheus recorded."""

    VERB: ClassVar[str] = "watch"
    at_s: float
    """Seconds since the epoch."""
    expected: ExpectedRow
    pools: tuple[PoolRow, ...]
    findings: tuple[Diagnosis | Ruling | Finding, ...]
    unanswered: tuple[str, ...]
    """Questions that cannot be answered, one sentence each."""
    services: tuple[ServiceRow, ...] = ()
    """Services, costliest first, if there are several; `pools` is then empty."""
    is_only: bool = field(metadata=HIDDEN)
    """Whether only one reading was requested."""
    snapshot: Snapshot = field(metadata=HIDDEN)
    yardstick: Yardstick = field(metadata=HIDDEN)

    @property
    def exit_code(self) -> int:
        """0 if nothing was found, 1 if something was, 3 if a server cannot be read."""
        found = [*self.findings, *(each for row in self.services for each in row.findings)]
        if any(finding.code == UNREAD for finding in found):
            return ExitCode.FAILED
        return ExitCode.FINDINGS if any(each.severity is not Severity.INFO for each in found) else ExitCode.GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """A request whose files and headers are read."""

    request: WatchRequest
    urls: Mapping[str, Sequence[str]]
    """Servers by pool."""
    headers: Mapping[str, Mapping[str, str]]
    """Headers by pool."""
    baseline: Baseline | None
    once: bool
    record: Path | None
    asked: SideInfo | None
    step: SetupStep | None
    """The step from the setup before a roll-out to today's."""
    yardstick: Yardstick
    unanswered: tuple[str, ...]


@verb(WatchRequest)
def watch(request: WatchRequest, progress: Progress) -> WatchResult:
    """Judge what speculation does for a running service: over one interval, then over the last five minutes.

    Reads only the servers' metrics pages, unless you request a probe. Readings are ratios of the growth of their
    counters between two reads. Every reading goes to `progress.update`; the last one is returned.
    """
    service = _read(request)
    if request.log is not None:
        result = _describe(service, _see_log(service, str(request.log)))
        progress.update(result)
        return result
    from draftwise.backends.wire import run_with_sockets

    seen = run_with_sockets(_watch(service, progress))
    return seen if seen is not None else _describe(service, Snapshot(at_s=0.0, windows=(), recent=()))


def _read(request: WatchRequest) -> _Service:
    """Read the files and headers of a request."""
    from draftwise.measure.access import find_headers

    headers = read_headers(request.headers, request.key_variables)
    step = _compare_setups(request)
    urls = (request.urls,) if isinstance(request.urls, str) else tuple(request.urls)
    given = request.baseline
    baseline = given if given is None or isinstance(given, Baseline) else _read_baseline(Path(given))
    _check(request, urls, baseline)
    has_plain, is_log = bool(request.plain or request.prometheus), request.log is not None
    yardstick = Yardstick(baseline=baseline)
    single = (request.probe, request.record_baseline, request.since_rollout, request.log)
    service = _Service(
        request=request,
        urls=dict(zip(_POOLS, (urls, tuple(request.plain)), strict=True)),
        headers={pool: find_headers(headers, pool) for pool in _POOLS},
        baseline=baseline,
        once=request.once or any(single),
        record=None if request.record_baseline is None else Path(request.record_baseline),
        asked=_read_asked(request, step),
        step=step,
        yardstick=yardstick,
        unanswered=tuple(
            yardstick.list_unanswered(
                has_plain=has_plain or is_log,
                has_probe=request.probe or is_log,
                has_earlier=request.since_rollout is not None or is_log,
            )
        ),
    )
    owner = request.setup_before or request.setup
    if baseline is not None and owner is not None:
        _check_owner(baseline, Path(owner))
    return service


def _read_baseline(path: Path) -> Baseline:
    from draftwise.runs.documents import read_baseline

    return read_baseline(path)


def _read_asked(request: WatchRequest, step: SetupStep | None) -> SideInfo | None:
    """Return what files say of the service. Reading a setup takes as long to import as all the rest."""
    if request.setup is None and request.start_log is None:
        return None
    from draftwise.watching.configured import read_side_info

    files = (None if each is None else Path(each) for each in (request.setup, request.start_log))
    asked = read_side_info(*files)
    return asked if step is None else replace(asked, releases=step.releases)


def _compare_setups(request: WatchRequest) -> SetupStep | None:
    if request.setup_before is None:
        return None
    if request.setup is None:
        refuse("--setup-before is compared with --setup: give that too.")
    from draftwise.watching.rollout import compare_setups

    return compare_setups(Path(request.setup_before), Path(request.setup))


def _check(request: WatchRequest, urls: Sequence[str], baseline: Baseline | None) -> None:
    asked = bool(urls) and not (request.probe and request.since_rollout)
    if asked + bool(request.prometheus) + bool(request.log) != 1:
        refuse(
            "Give the URLs of servers, --prometheus, or --log. Only --since-rollout with --probe takes "
            "two: --prometheus for the recorded history, and the URLs to probe."
        )
    from draftwise.watching.watcher import name_server

    twice = [url for url, count in Counter(map(name_server, (*urls, *request.plain))).items() if count > 1]
    if twice:
        refuse(f"{twice[0]} is given twice: a server counts once, and belongs to one pool.")
    if request.plain and not urls:
        refuse("--plain is read with URLs of servers only. Prometheus tells a plain pool by its label pool.")
    if (request.probe or request.record_baseline) and not urls:
        refuse("--probe and --record-baseline send requests to servers: give their URLs.")
    if request.since_rollout is not None and request.prometheus is None:
        refuse("--since-rollout reads recorded history: give --prometheus.")
    if request.prometheus is None and (request.service or request.namespace or request.model):
        refuse("--service, --namespace and --model select recorded servers: give --prometheus.")
    if request.probe and (baseline is None or not baseline.probe):
        refuse("--probe needs a --baseline with a probe, as --record-baseline writes it.")


def _check_owner(baseline: Baseline, setup_file: Path) -> None:
    """Refuse the baseline of another setup than the setup.json that is given. A manifest has no digest to compare."""
    digest = sha256(setup_file.read_bytes()).hexdigest()
    if setup_file.suffix == ".json" and baseline.setup_sha256 not in ("", digest):
        raise refusal("baseline-of-other-setup", setup_file=setup_file)


def _see_log(of: _Service, name: str) -> Snapshot:
    from draftwise.verbs.diagnosing import add_diagnoses
    from draftwise.watching.log import see_log

    try:
        with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8", errors="replace") as lines:
            snapshot = see_log(lines, name="stdin" if name == "-" else name)
    except OSError as error:
        text = f"{name} cannot be read ({cause_of(error)})."
        raise UnreadableSource.because("unreadable-file", text, where=name) from None
    seen = add_diagnoses(snapshot, of.baseline, of.asked)
    if any(each.code == "fell-in-log" for each in seen.findings):  # more was accepted earlier with the same k
        seen = replace(seen, findings=tuple(each for each in seen.findings if each.code != "tail-dead"))
    return seen


def _open(of: _Service) -> Watching:
    if of.request.prometheus is not None:
        from draftwise.watching.prometheus import PrometheusWatcher

        return PrometheusWatcher(of.request.prometheus, selection=_select(of), headers=of.headers["spec"])
    from draftwise.watching.watcher import Watcher, open_pages

    return Watcher(open_pages(of.urls, of.headers))


def _select(of: _Service) -> Selection:
    from draftwise.watching.prometheus import Selection

    return Selection(model=of.request.model, service=of.request.service, namespace=of.request.namespace)


async def _watch_fleet(of: _Service, progress: Progress) -> WatchResult | None:
    """Report every look at all services; None where one service was recorded, or Prometheus does not answer."""
    if of.request.prometheus is None or of.baseline is not None or of.request.since_rollout is not None:
        return None
    from draftwise.watching.fleet import list_services, see_fleet
    from draftwise.watching.prometheus import PrometheusApi
    from draftwise.watching.watcher import RECENT_S, tick_every

    api, result = PrometheusApi(of.request.prometheus, headers=of.headers["spec"]), None
    with suppress(asyncio.CancelledError, BackendError), closing(api):
        if len(await list_services(api, _select(of))) < 2:
            return None
        async for _ in tick_every(of.request.interval_s):
            now_s = time.time()
            seen = await see_fleet(api, _select(of), now_s=now_s, span_s=RECENT_S)
            services = tuple(map(_describe_service, seen))
            result = replace(
                _describe(of, Snapshot(at_s=now_s, windows=(), recent=())), services=services, unanswered=()
            )
            progress.update(result)
            if of.once or progress.stop_requested:
                break
    return result


def _describe_service(seen: FleetService) -> ServiceRow:
    servers = {pool: {each.instance for each in seen.windows if (each.pool == PLAIN) == pool} for pool in (False, True)}
    whole = Window.pooled(each for each in seen.windows if each.pool != PLAIN)
    return ServiceRow(
        namespace=seen.name[0],
        service=seen.name[1],
        model=seen.model,
        revisions=tuple(sorted({each.revision for each in seen.windows} - {""})),
        servers=len(servers[False]),
        plain=len(servers[True]),
        tokens_per_step=None if whole is None else whole.tokens_per_step,
        break_even=seen.yardstick.break_even,
        output_tokens_per_s=None if whole is None else whole.output_tokens_per_s,
        cost=None if seen.cost is None else round(seen.cost, 3),
        findings=seen.found,
    )


async def _watch(of: _Service, progress: Progress) -> WatchResult | None:
    """Report every look until the operator ends it, and return the last one.

    The first look is taken before anything else: what judges it is imported while the interval passes.
    """
    result = await _watch_fleet(of, progress)
    if result is not None:
        return result
    watching = _open(of)
    stopping = asyncio.create_task(_end_when_stopped(progress, asyncio.current_task()))
    with suppress(asyncio.CancelledError):
        await watching.begin()
        async with aclosing(watching.snapshots(of.request.interval_s)) as snapshots:
            async for seen in snapshots:
                result = _describe(of, await _judge_snapshot(of, watching, seen))
                progress.update(result)
                if of.once or progress.stop_requested:
                    break
    stopping.cancel()
    return result


async def _end_when_stopped(progress: Progress, watching: asyncio.Task[Any] | None) -> None:
    """Cancel what waits for the end of an interval once somebody asks to stop."""
    while not progress.stop_requested:
        await asyncio.sleep(_STOP_S)
    if watching is not None:
        watching.cancel()


def _describe(of: _Service, snapshot: Snapshot) -> WatchResult:
    return WatchResult(
        at_s=snapshot.at_s,
        expected=ExpectedRow(
            tokens_per_step=of.yardstick.tokens_per_step,
            break_even=of.yardstick.break_even,
            crossover=of.yardstick.crossover,
        ),
        pools=tuple(describe_pool(snapshot.serving(pool)) for pool in snapshot.pools),
        findings=snapshot.findings,
        unanswered=of.unanswered if snapshot.pools else (),
        is_only=of.once,
        snapshot=snapshot,
        yardstick=of.yardstick,
    )


async def _judge_snapshot(of: _Service, watching: Watching, snapshot: Snapshot) -> Snapshot:
    """Return the readings with their diagnoses, from the counters and all other information."""
    from draftwise.verbs.diagnosing import add_diagnoses

    findings, fingerprints = await _ask(of, snapshot)
    notes, earlier, snapshot = await _look_back(of, watching, snapshot)
    whole = replace(snapshot, findings=(*snapshot.findings, *findings, *notes))
    return add_diagnoses(whole, of.baseline, of.asked, fingerprints, earlier)


async def _look_back(
    of: _Service, watching: Watching, snapshot: Snapshot
) -> tuple[tuple[Finding, ...], Window | None, Snapshot]:
    """Return what changed with a roll-out, the window before it and what is seen since, where that is asked for."""
    about_step = () if of.step is None else of.step.findings
    if of.request.since_rollout is None or snapshot.findings:
        return about_step, None, snapshot
    from draftwise.watching.prometheus import PrometheusWatcher
    from draftwise.watching.rollout import parse_time, tell_rollout

    assert isinstance(watching, PrometheusWatcher), "checked with the options"
    rollout, windows = await watching.look_before(parse_time(of.request.since_rollout))
    if rollout is not None:
        snapshot = await watching.look(since_s=rollout.ended_s)
    before, after = (
        Window.pooled(each for each in side if each.pool != "plain") for side in (windows, snapshot.recent)
    )
    return (tell_rollout(rollout, before, after), *about_step), before, snapshot


async def _ask(of: _Service, snapshot: Snapshot) -> tuple[tuple[Finding, ...], tuple[Fingerprint, ...]]:
    """Return what the servers answer to the probe, where it is wanted, and the fingerprints of these answers."""
    unread = {finding.where for finding in snapshot.findings}
    if not (of.request.probe or of.record):
        return (), ()
    from draftwise.verbs.probing import load_prompts, probe_servers, record
    from draftwise.watching.watcher import name_server

    urls = [url for url in map(name_server, of.urls["spec"]) if url not in unread]
    prompts, headers = load_prompts(of.request.workload), of.headers["spec"]
    findings: tuple[Finding, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    if of.request.probe and of.baseline is not None:
        judged = await probe_servers(urls, prompts, of.baseline, headers)
        findings = tuple(finding for finding, _ in judged)
        fingerprints = tuple(each for _, each in judged if each is not None)
    if of.record is not None and urls:
        window = Window.pooled(snapshot.of("spec"))
        findings += (await record(of.record, urls[0], prompts, window, of.baseline, headers),)
    return findings, fingerprints
