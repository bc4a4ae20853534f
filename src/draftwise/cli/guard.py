"""`draftwise guard`: proposes what to do when speculation stops paying, and does what it was given the means for."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwise.cli._baseline import read_baseline
from draftwise.core import BackendError, Baseline, InvalidSetup, Severity

if TYPE_CHECKING:
    from draftwise.guarding.guard_state import Store
    from draftwise.guarding.service_guard import ServiceGuard, Tick
    from draftwise.guarding.service_reading import ProbeReading
    from draftwise.watching.watcher import HttpPage

__all__ = ["guard"]

_EXIT_GOOD, _EXIT_FINDING, _EXIT_UNREAD = 0, 1, 3


@click.command(short_help="Propose what to do when speculation stops paying, and do what it was given the means for.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--plain", "plain_urls", multiple=True, metavar="URL",
              help="A replica of the same model without speculation; it is never acted on.")  # fmt: skip
@click.option("--baseline", "baseline_file", type=click.Path(path_type=Path), metavar="FILE",
              help="baseline.json of `draftwise deploy`: the break-even, and the probe of a good server.")  # fmt: skip
@click.option("--state", "state_file", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE",
              help="What is known and was done, over restarts; steps and history lie beside it.")  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(min=0.5), default=30.0, show_default=True,
              metavar="SECONDS", help="Between two looks.")  # fmt: skip
@click.option("--act", "acts", multiple=True, metavar="EXECUTOR",
              help="What may carry out steps: haproxy=SOCKET, command='WORDS {step} {replica}', patch=DIR of "
              "`draftwise deploy`. Without one, steps are proposed.")  # fmt: skip
@click.option("--min-spec", type=click.IntRange(min=0), metavar="N",
              help="Replicas with speculation that stay in the traffic  [default: those that the plain ones "
              "could not stand in for, one by one]")  # fmt: skip
@click.option("--trickle", "trickles", is_flag=True, help="Try a replica that is out with a twentieth of the traffic.")
@click.option("--probe", "probes", is_flag=True, help="Ask replicas that are out a few prompts, every 15 minutes.")
@click.option("--prometheus", "prometheus_url", metavar="URL",
              help="Read the history of the service from this Prometheus: drift is then learned at once.")  # fmt: skip
@click.option("--model", metavar="NAME", help="Label model_name of the service, with --prometheus.")
@click.option("--once", is_flag=True, help="Look for as long as one decision takes (three windows), then end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object a look, each on one line.")
@click.option("--undo", "undoes", is_flag=True, help="Put back all that was taken out, and end.")
@click.option("--acknowledge", "acknowledges", is_flag=True,
              help="What changed is known: learn the service anew, and end.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="[POOL=]'NAME: VALUE'",
              help="Sent to the URLs; ${VARIABLE} is replaced. POOL is spec or plain.")  # fmt: skip
@click.option("--api-key-env", "key_variables", multiple=True, metavar="[POOL=]NAME",
              help="Variable that holds the key of the URLs.")  # fmt: skip
def guard(urls: Sequence[str], state_file: Path, undoes: bool, acknowledges: bool, **given: Any) -> None:
    """Guard the replicas of a service: propose steps, or carry out those for which an executor is named.

    URL is a replica that speculates. A step needs the windows of at least 30 s in which a replica's tokens per step are
    below break-even beyond noise. At most one is carried out in an hour; one that took a replica out of the traffic
    stays until a probe, or a trickle of traffic, shows that it pays again: no data, an alert that resolved and a
    restart are no reason. Every step is recorded with its evidence, and --undo takes all of them back.

    The exit code is 0 if nothing was found, 1 if something was, and 3 if a server cannot be read or a step fails.

    \b
    Examples:
      draftwise guard http://llama-0:8000 --plain http://llama-plain:8000 --baseline deploy/baseline.json --state g.json
      draftwise guard http://llama-0:8000 --plain http://llama-plain:8000 --baseline deploy/baseline.json \\
          --state g.json --act haproxy=/run/haproxy.sock --act patch=deploy/ --probe
      draftwise guard --state g.json --undo
    """
    from draftwise.guarding.guard_state import Store

    store = Store(state_file)
    if undoes or acknowledges:
        if urls or (undoes and acknowledges):
            raise click.UsageError("Give --undo or --acknowledge alone with --state.")
        _undo(store) if undoes else _acknowledge(store)
        return
    if not urls:
        raise click.UsageError("Give the URLs of the replicas that speculate.")
    pages = _open_pages(urls, given)
    if given["prometheus_url"]:
        asyncio.run(_read_history(store, given))
    made = _make_guard(store, pages, given)
    tick = asyncio.run(_run(made, pages, given))
    sys.exit(_judge(tick))


async def _read_history(store: Store, given: Mapping[str, Any]) -> None:
    """Put what a Prometheus recorded into the history; where it does not answer, the guard goes on without."""
    from draftwise.guarding.guard_state import KEPT_DAYS
    from draftwise.guarding.recorded_history import read_recorded
    from draftwise.watching.prometheus import PrometheusApi

    now_s, api = time.time(), PrometheusApi(given["prometheus_url"])
    try:
        rows = await read_recorded(api, model=given["model"], begin_s=now_s - KEPT_DAYS * 86_400, end_s=now_s)
    except BackendError as error:
        click.echo(f"warning: {error} Drift is learned from what this guard sees itself.", err=True)
        return
    finally:
        api.close()
    with store.alone():
        store.add_older(rows)


def _undo(store: Store) -> None:
    from draftwise.guarding.undo import undo

    num_undone = 0
    for sentence in undo(store, now_s=time.time()):
        num_undone += 1
        click.echo(sentence)
    if not num_undone:
        click.echo("Nothing that was done still holds.")


def _acknowledge(store: Store) -> None:
    with store.alone():
        store.write(store.read().acknowledge(time.time()))
    click.echo("The service is learned from now on, and its replicas may be acted on again.")


def _open_pages(urls: Sequence[str], given: Mapping[str, Any]) -> Sequence[HttpPage]:
    from draftwise.cli._access import read_headers
    from draftwise.measure.access import find_headers
    from draftwise.watching.watcher import open_pages

    pools = {"spec": tuple(urls), "plain": tuple(given["plain_urls"])}
    headers = read_headers(given)
    pages = open_pages(pools, {pool: find_headers(headers, pool) for pool in pools})
    names = [page.instance for page in pages]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidSetup.because(
            "server-given-twice", f"{', '.join(sorted(twice))} is given twice.", where="URL", fix="Name each once."
        )
    return pages


def _make_guard(store: Store, pages: Sequence[HttpPage], given: Mapping[str, Any]) -> ServiceGuard:
    from draftwise.guarding.executors import parse_executor
    from draftwise.guarding.lease import open_leases
    from draftwise.guarding.service_guard import Means, ServiceGuard
    from draftwise.guarding.service_reading import Rules
    from draftwise.watching.yardstick import Yardstick

    spec, plain = ([page.instance for page in pages if page.pool == pool] for pool in ("spec", "plain"))
    min_spec = given["min_spec"]
    baseline = _find_baseline(given)
    rules = Rules.of(
        Yardstick(baseline=baseline).break_evens,
        every_s=given["every_s"],
        min_spec=max(len(spec) - len(plain), 0) if min_spec is None else min_spec,
        trickles=given["trickles"],
    )
    executors = tuple(parse_executor(text, patch_file=store.patch) for text in given["acts"])
    for executor in executors:
        executor.prove(spec)
    leases = open_leases(store.path, spec, every_s=given["every_s"])
    probe = _make_probe(baseline, given) if given["probes"] else None
    means = Means(executors=executors, leases=leases, probe=probe)
    return ServiceGuard(spec, plain, rules=rules, store=store, means=means)


def _find_baseline(given: Mapping[str, Any]) -> Baseline | None:
    return None if given["baseline_file"] is None else read_baseline(given["baseline_file"])


def _make_probe(baseline: Baseline | None, given: Mapping[str, Any]) -> Callable[..., Awaitable[ProbeReading | None]]:
    """Return what asks a replica a few prompts."""
    from draftwise.cli._access import read_headers
    from draftwise.cli._probing import ask, load_prompts
    from draftwise.guarding.service_reading import read_probe, refuse_unless_comparable
    from draftwise.measure.access import find_headers

    known, prompts = refuse_unless_comparable(baseline), load_prompts(None)
    headers = find_headers(read_headers(given), "spec")

    async def probe(url: str, now_s: float) -> ProbeReading | None:
        return read_probe(await ask(url, prompts, headers), known, at_s=now_s)

    return probe


async def _run(made: ServiceGuard, pages: Sequence[HttpPage], given: Mapping[str, Any]) -> Tick | None:
    """Look until the operator ends it, or until a decision could be made, and return what was found last."""
    from draftwise.cli._diagnosing import add_diagnoses
    from draftwise.cli._guarding import JsonShow, TextShow
    from draftwise.guarding.service_reading import MIN_WINDOWS
    from draftwise.watching.diagnose import SideInfo
    from draftwise.watching.watcher import Watcher

    if given["once"]:
        text = f"Looking for {made.hold_s:.0f} s, as a decision takes: {MIN_WINDOWS} windows (--every), and 30 s."
        click.echo(text, err=True)
    show = JsonShow() if given["as_json"] else TextShow()
    baseline = _find_baseline(given)
    tick, num_looks = None, 0
    with suppress(asyncio.CancelledError):
        async with aclosing(Watcher(pages).snapshots(given["every_s"])) as snapshots:
            try:
                async for snapshot in snapshots:
                    tick, num_looks = await made.tick(add_diagnoses(snapshot, baseline, SideInfo())), num_looks + 1
                    show.show(tick)
                    if given["once"] and num_looks * given["every_s"] >= made.hold_s and num_looks >= MIN_WINDOWS:
                        break
            finally:
                made.release()
    return tick


def _judge(tick: Tick | None) -> int:
    """Return the exit code of what was found last."""
    if tick is None:
        return _EXIT_GOOD
    if any(finding.code in ("server-unread", "nothing-is-read", "step-failed") for finding in tick.findings):
        return _EXIT_UNREAD
    grave = any(finding.severity is not Severity.INFO for finding in tick.findings)
    return _EXIT_FINDING if grave or tick.actions else _EXIT_GOOD
