"""The probe: sends a few prompts to every server, and compares the answers with a baseline or records them as one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftwise.backends.backend import ServerProbe
from draftwise.backends.url import UrlBackend
from draftwise.core import BackendError, Baseline, Finding, StorageError, Window, Workload, cause_of
from draftwise.machine.network import find_proxy
from draftwise.machine.whole_files import write_whole
from draftwise.measure.probe import load_probe, probe
from draftwise.watching.fingerprint import FEWEST_DRAFTS, Fingerprint, judge_probe, record_baseline, take_answers
from draftwise.watching.watcher import unread
from draftwise.workloads.loading import load_workloads

_BUNDLED, _OWN, _MOST_TOKENS = 24, 48, 64
_REPEATS = 4
_MOST_NULL = 50.0
"""Percent of the prompts: where more change without a cause, that some take other steps says nothing."""


def load_prompts(own: str | None) -> tuple[Workload, ...]:
    """Return the bundled prompts, and the first of the operator's own (`--workload`)."""
    if own is None:
        return load_probe(_BUNDLED)
    mine = (workload.first(_OWN) for workload in load_workloads(own, max_tokens=_MOST_TOKENS))
    return (*load_probe(_BUNDLED), *mine)


async def probe_servers(
    urls: Sequence[str], workloads: Sequence[Workload], baseline: Baseline, headers: Mapping[str, str]
) -> tuple[tuple[Finding, Fingerprint | None], ...]:
    """Compare each server's answers with the baseline's; return results and fingerprints. Asks all servers at once."""

    async def judge(url: str) -> tuple[Finding, Fingerprint | None]:
        try:
            return judge_probe(await ask(url, workloads, headers), baseline, where=url)
        except BackendError as error:
            return unread(url, error), None

    return tuple(await asyncio.gather(*map(judge, urls)))


async def record(
    path: Path,
    url: str,
    workloads: Sequence[Workload],
    window: Window | None,
    known: Baseline | None,
    headers: Mapping[str, str],
) -> Finding:
    """Send one server the prompts several times; write its answers, and the window of its counters, as a baseline.

    Returns:
        The baseline.

    Raises:
        InvalidSetup: its steps cannot be counted.
        StorageError: the file cannot be written.
    """
    try:
        repeats = [take_answers(each) for each in await ask_again(url, workloads, headers)]
    except BackendError as error:
        return unread(url, error)
    baseline = record_baseline(window, repeats, known)
    try:
        write_whole(path, baseline.to_json())
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({cause_of(error)}). Choose another --record-baseline.") from None
    is_new = baseline.seen is not None and baseline.seen != (known and known.seen)
    kept = f"the last {baseline.seen.duration_s:.0f} s and " if baseline.seen is not None and is_new else ""
    told = f"{path} has {kept}{len(repeats[0])} prompts of the probe, {_REPEATS} times"
    null = 100 * (baseline.probe_null or 0)
    text = f"{told}: {null:.0f} % of them vary by chance. The service's state now counts as healthy."
    if null > _MOST_NULL:
        text += " At that rate, a later probe detects only a fall of tokens per step."
    if not is_new:
        text += f" The window is left out because it has fewer than {FEWEST_DRAFTS} drafts: use a longer --interval."
    return Finding.info("baseline-recorded", text, where=url)


async def ask_again(url: str, workloads: Sequence[Workload], headers: Mapping[str, str]) -> Sequence[ServerProbe]:
    """Return a server's answers of several rounds, enough to show how they vary by chance."""
    return [await ask(url, workloads, headers) for _ in range(_REPEATS)]


async def ask(url: str, workloads: Sequence[Workload], headers: Mapping[str, str]) -> ServerProbe:
    """Return a server's answers, under a new cache salt: none reuses the cached prefix of an earlier probe."""
    server = UrlBackend(url, url.removesuffix("/metrics"), headers=dict(headers), proxy=find_proxy(url))
    return (await probe(server, None, workloads, salt=secrets.token_hex(4))).server
