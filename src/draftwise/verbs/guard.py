"""`guard`: proposes steps if speculation stops paying, and takes those it has the means for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from draftwise.backends.wire import run_with_sockets
from draftwise.core import BackendError, Baseline, Diagnosis, Finding, Ruling, Severity, Window
from draftwise.core.action import Action
from draftwise.core.documents import json_form
from draftwise.core.exit_codes import ExitCode
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.runs.documents import read_baseline
from draftwise.verbs.field_types import Range
from draftwise.verbs.request_headers import Header, read_headers
from draftwise.verbs.verb import Result, refuse, verb

if TYPE_CHECKING:
    from draftwise.guarding.guard_state import Store
    from draftwise.guarding.service_guard import ServiceGuard, Tick
    from draftwise.guarding.service_reading import ProbeReading
    from draftwise.watching.watcher import HttpPage

_POOLS = ("spec", "plain")


@dataclass(frozen=True, slots=True)
class GuardRequest:
    """The replicas of one service, and the steps that the guard may take."""

    urls: str | Sequence[str] = ()
    """Replicas that speculate."""
    _: KW_ONLY
    state: str | PathLike[str]
    """File that keeps the guard's state across restarts; steps and history are stored next to it."""
    plain: Sequence[str] = ()
    """Replicas of the same model without speculation; they are never acted on."""
    baseline: Baseline | str | PathLike[str] | None = None
    """baseline.json of `deploy`: the break-even, and the probe of a good server."""
    every_s: Annotated[float, Range(0.5)] = 30.0
    """Seconds between two checks."""
    act: Sequence[str] = ()
    """Executors: haproxy=SOCKET, command='WORDS {step} {replica}', patch=DIR. Without one, the guard only proposes."""
    min_spec: Annotated[int, Range(0)] | None = None
    """Fewest speculative replicas to keep in the traffic; default: their number minus that of the plain ones."""
    trickle: bool = False
    """Whether to try a drained replica with a twentieth of the traffic."""
    probe: bool = False
    """Whether to send drained replicas a few prompts every 15 minutes."""
    prometheus: str | None = None
    """URL of a Prometheus with the history of the service: drift is then learned at once."""
    model: str | None = None
    """Label model_name of the service, with `prometheus`."""
    once: bool = False
    """Whether to exit after one decision (three windows)."""
    undo: bool = False
    """Whether to put every drained replica back and exit."""
    acknowledge: bool = False
    """Whether to relearn the service after a known change and exit."""
    headers: Sequence[Header | str] = ()
    """`[POOL=]NAME: VALUE` for the URLs; ${VARIABLE} stands for an environment variable."""
    key_variables: Sequence[str] = ()
    """`[POOL=]NAME` of environment variables that hold API keys for the URLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica, as the last check saw it."""

    url: str
    pool: Literal["spec", "plain"]
    answers: bool
    """Whether its counters could be read over the last window."""
    tokens_per_step: float | None
    out_of_traffic: str | None
    """Step that took it out of the traffic; null if it is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult(Result):
    """The outcome of one check."""

    VERB: ClassVar[str] = "guard"
    at_s: float
    """Seconds since the epoch."""
    replicas: tuple[ReplicaRow, ...]
    actions: tuple[Action, ...]
    """The step that was carried out, if any, and new proposals."""
    findings: tuple[Diagnosis | Ruling | Finding, ...]
    done: tuple[str, ...] = field(default=(), metadata=json_form(omit_empty=True))
    """What was undone or acknowledged, one sentence each."""

    @property
    def exit_code(self) -> int:
        """0 if nothing was found, 1 if something was, 3 if a server cannot be read or a step fails."""
        if any(finding.code in ("server-unread", "nothing-is-read", "step-failed") for finding in self.findings):
            return ExitCode.FAILED
        grave = any(finding.severity is not Severity.INFO for finding in self.findings)
        return ExitCode.FINDINGS if grave or self.actions else ExitCode.GOOD


@verb(GuardRequest)
def guard(request: GuardRequest, progress: Progress) -> GuardResult:
    """Guard the replicas of a service: propose steps, or carry out those for which an executor is given.

    A step needs windows of at least 30 s in which a replica's tokens per step are below break-even by more than the
    noise. The guard carries out at most one step an hour. A replica that is out of the traffic stays out until a probe,
    or a trickle of traffic, shows that it pays again. Missing data, a resolved alert or a restart never triggers a
    step. Every step is recorded with its evidence; `undo` reverts them all.

    Every check goes to `progress.update`.
    """
    from draftwise.guarding.guard_state import Store

    urls = (request.urls,) if isinstance(request.urls, str) else tuple(request.urls)
    store = Store(Path(request.state))
    if request.undo or request.acknowledge:
        if urls or (request.undo and request.acknowledge):
            refuse("Give --undo or --acknowledge alone with --state.")
        done = _undo(store) if request.undo else _acknowledge(store)
        return GuardResult(at_s=time.time(), replicas=(), actions=(), findings=(), done=done)
    if not urls:
        refuse("Give the URLs of the speculative replicas.")
    headers = _find_headers(request)
    pages = _open_pages({"spec": urls, "plain": tuple(request.plain)}, headers)
    if request.prometheus:
        run_with_sockets(_read_history(store, request.prometheus, request.model, progress))
    given = request.baseline
    baseline = given if given is None or isinstance(given, Baseline) else read_baseline(Path(given))
    made = _make_guard(request, store, pages, baseline, headers["spec"])
    seen = run_with_sockets(_run(request, made, pages, baseline, progress))
    return GuardResult(at_s=time.time(), replicas=(), actions=(), findings=()) if seen is None else seen


async def _read_history(store: Store, url: str, model: str | None, progress: Progress) -> None:
    """Put what a Prometheus recorded into the history; where it does not answer, the guard goes on without."""
    from draftwise.guarding.guard_state import KEPT_DAYS
    from draftwise.guarding.recorded_history import read_recorded
    from draftwise.watching.prometheus import PrometheusApi

    now_s, api = time.time(), PrometheusApi(url)
    try:
        rows = await read_recorded(api, model=model, begin_s=now_s - KEPT_DAYS * 86_400, end_s=now_s)
    except BackendError as error:
        progress.status(f"warning: {error} The guard learns drift from its own readings.")
        return
    finally:
        api.close()
    with store.alone():
        store.add_older(rows)


def _undo(store: Store) -> tuple[str, ...]:
    from draftwise.guarding.service_guard import undo

    return tuple(undo(store, now_s=time.time())) or ("All steps are undone.",)


def _acknowledge(store: Store) -> tuple[str, ...]:
    with store.alone():
        store.write(store.read().acknowledge(time.time()))
    return ("The guard now learns the service again and may act on its replicas.",)


def _find_headers(request: GuardRequest) -> Mapping[str, Mapping[str, str]]:
    from draftwise.measure.access import find_headers

    headers = read_headers(request.headers, request.key_variables)
    return {pool: find_headers(headers, pool) for pool in _POOLS}


def _open_pages(pools: Mapping[str, Sequence[str]], headers: Mapping[str, Mapping[str, str]]) -> Sequence[HttpPage]:
    from draftwise.watching.watcher import open_pages

    pages = open_pages(pools, headers)
    names = [page.instance for page in pages]
    if twice := {name for name in names if names.count(name) > 1}:
        raise refusal("server-given-twice", names=", ".join(sorted(twice)))
    return pages


def _make_guard(
    request: GuardRequest,
    store: Store,
    pages: Sequence[HttpPage],
    baseline: Baseline | None,
    headers: Mapping[str, str],
) -> ServiceGuard:
    from draftwise.guarding.executors import parse_executor
    from draftwise.guarding.guard_state import open_leases
    from draftwise.guarding.service_guard import Means, ServiceGuard
    from draftwise.guarding.service_reading import Rules, find_k
    from draftwise.watching.diagnose import PoolExpectation
    from draftwise.watching.yardstick import Yardstick

    spec, plain = ([page.instance for page in pages if page.pool == pool] for pool in _POOLS)
    yardstick = Yardstick(baseline=baseline)
    measured = PoolExpectation(yardstick=yardstick).window
    rules = Rules.of(
        yardstick.break_evens,
        every_s=request.every_s,
        min_spec=max(len(spec) - len(plain), 0) if request.min_spec is None else request.min_spec,
        trickles=request.trickle,
        k=0 if measured is None else find_k(measured),
    )
    if baseline is not None:
        rules = replace(rules, unknown_because=baseline.why_no_limits or "the run has no limit")
    executors = tuple(parse_executor(text, patch_file=store.patch) for text in request.act)
    for executor in executors:
        executor.prove(spec)
    leases = open_leases(store.path, spec, every_s=request.every_s)
    probe = _make_probe(baseline, headers) if request.probe else None
    means = Means(executors=executors, leases=leases, probe=probe)
    return ServiceGuard(spec, plain, rules=rules, store=store, means=means)


def _make_probe(baseline: Baseline | None, headers: Mapping[str, str]) -> Callable[..., Awaitable[ProbeReading | None]]:
    from draftwise.guarding.service_reading import read_probe, refuse_unless_comparable
    from draftwise.verbs.probing import ask, load_prompts

    known, prompts = refuse_unless_comparable(baseline), load_prompts(None)

    async def probe(url: str, now_s: float) -> ProbeReading | None:
        return read_probe(await ask(url, prompts, headers), known, at_s=now_s)

    return probe


async def _run(
    request: GuardRequest, made: ServiceGuard, pages: Sequence[HttpPage], baseline: Baseline | None, progress: Progress
) -> GuardResult | None:
    """Look until the operator ends it, or until a decision could be made, and return what was found last."""
    from draftwise.guarding.service_reading import MIN_WINDOWS
    from draftwise.verbs.diagnosing import add_diagnoses
    from draftwise.watching.watcher import Watcher

    if request.once:
        progress.status(
            f"Reading for {made.hold_s:.0f} s, enough for one decision: {MIN_WINDOWS} windows (--every), and 30 s."
        )
    result, num_looks = None, 0
    with suppress(asyncio.CancelledError):
        async with aclosing(Watcher(pages).snapshots(request.every_s)) as snapshots:
            try:
                async for snapshot in snapshots:
                    tick, num_looks = await made.tick(add_diagnoses(snapshot, baseline, None)), num_looks + 1
                    result = _describe(tick)
                    progress.update(result)
                    is_decided = num_looks * request.every_s >= made.hold_s and num_looks >= MIN_WINDOWS
                    if (request.once and is_decided) or progress.stop_requested:
                        break
            finally:
                made.release()
    return result


def _describe(tick: Tick) -> GuardResult:
    replicas = (*_rows("spec", tick.reading.spec, tick), *_rows("plain", tick.reading.plain, tick))
    return GuardResult(at_s=tick.at_s, replicas=replicas, actions=tick.actions, findings=tick.findings)


def _rows(pool: Literal["spec", "plain"], windows: Mapping[str, Window | None], tick: Tick) -> list[ReplicaRow]:
    return [
        ReplicaRow(
            url=name,
            pool=pool,
            answers=window is not None,
            tokens_per_step=None if window is None else window.tokens_per_step,
            out_of_traffic=None if (latch := tick.state.latches.get(name)) is None else str(latch.step),
        )
        for name, window in windows.items()
    ]
