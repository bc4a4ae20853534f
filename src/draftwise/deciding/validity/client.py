"""Whether the load generator, and not a server, set the numbers of a comparison, or a selection of its requests did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from draftwise.core import Answer, Finding, Run, Severity
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.thresholds import Thresholds

__all__ = ["check_client"]

_ELSEWHERE = "Spread the load over more client processes, stop what else runs here, or measure from another machine."
_TIMER_S = 0.001
"""Timers of an event loop are that coarse (epoll counts milliseconds): a delay within it says nothing."""
_MANY_GAPS = 10
"""One reading in a hundred that is late by a few gaps hardly moves a median; one late by so many is a stalled loop."""


def check_client(run: Run, cell: Cell, thresholds: Thresholds) -> list[Finding]:
    """Return where the load generator, or a selection of the requests, may have set the numbers of a comparison."""
    return [*_check_strain(run, cell, thresholds), *_missing(cell, thresholds)]


def _check_strain(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield where the client, and not the server, may have set the numbers: the worse arm of a comparison."""
    strains = [each for arm in (cell.baseline, cell.candidate) if (each := _strain(cell, arm)) is not None]
    if strains:
        yield from _saturated(max(strains, key=lambda each: each.busy), thresholds)
        late = max(strains, key=_lateness)
        yield from _reads_late(late, thresholds, stamped=_is_stamped(run, late.arm))
        yield from _sends_late(max(strains, key=lambda each: each.lag_s), thresholds)
        yield from _takes_cores(run, max(strains, key=lambda each: each.cores), thresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strain:
    """What the turns of one arm asked of the load generator."""

    arm: str
    busy: float
    """CPU seconds per second and client process."""
    cores: float
    """CPU seconds per second, all its processes together."""
    late_s: float
    """P99 of the event loop's delay in the typical turn."""
    lag_s: float
    """P99 of the send lag in the typical turn."""
    usual_lag_s: float
    """Median over answers."""
    gap_s: float
    """Median over answers of the time between two chunks."""
    ttft_s: float
    """Median over answers."""
    e2e_s: float
    """Median over answers."""


def _strain(cell: Cell, arm: str) -> _Strain | None:
    turns = [turn for turn in cell.turns if turn.arm == arm and turn.wall_s > 0]
    answers = [each for each in cell.requests[arm] if each.error is None]
    if not turns or not answers:
        return None
    wall_s = sum(turn.wall_s for turn in turns)
    return _Strain(
        arm=arm,
        busy=sum(turn.client.cpu_s / max(1, turn.client.processes) for turn in turns) / wall_s,
        cores=sum(turn.client.cpu_s for turn in turns) / wall_s,
        late_s=median(turn.client.loop_delay_p99_s for turn in turns),
        lag_s=median(turn.client.send_lag_p99_s for turn in turns),
        gap_s=_median_or_zero(map(_find_gap_s, answers)),
        ttft_s=_median_or_zero(answer.timing.ttft_s for answer in answers),
        e2e_s=_median_or_zero(answer.timing.e2e_s for answer in answers),
        usual_lag_s=_median_or_zero(answer.timing.send_lag_s for answer in answers),
    )


def _saturated(strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    """A process that is always busy sets the pace itself."""
    text = f"each process of the load generator used {strain.busy:.0%} of a core while {strain.arm} answered"
    if strain.busy >= thresholds.client_saturated:
        yield Finding.error("client-saturated", f"{text}: what was measured is the load generator.", fix=_ELSEWHERE)
    elif strain.busy >= thresholds.client_busy:
        yield Finding.warning("client-busy", f"{text}: bursts may wait in it.", fix=_ELSEWHERE)


def _lateness(strain: _Strain) -> float:
    """Return how late an arrival may be read, over the shortest time that is measured with such readings."""
    shortest = min((each for each in (strain.gap_s, strain.ttft_s) if each > 0), default=0.0)
    return strain.late_s / shortest if shortest and strain.late_s > _TIMER_S else 0.0


def _is_stamped(run: Run, arm: str) -> bool:
    """Return whether arrivals are timed by the kernel, so that a late reading costs nothing but merged chunks."""
    url = next((each.url for each in run.plan.arms if each.name == arm), None)
    on_linux = str(run.context.software.os).startswith("Linux")
    return on_linux and (url is None or url.startswith("http://"))


def _reads_late(strain: _Strain, thresholds: Thresholds, *, stamped: bool) -> Iterator[Finding]:
    """Chunks that arrive between two readings count as one; without the kernel's times they also count as late."""
    late = _lateness(strain)
    if late < (1 if stamped else thresholds.client_late):
        return
    text = (
        f"the load generator reads arrivals up to {strain.late_s * 1e3:.1f} ms late (P99) while {strain.arm} answers "
        f"with {strain.gap_s * 1e3:.1f} ms between chunks and {strain.ttft_s * 1e3:.0f} ms to the first"
    )
    if strain.late_s >= (strain.e2e_s / 2 if stamped else min(strain.ttft_s, _MANY_GAPS * strain.gap_s) or math.inf):
        yield Finding.error("client-reads-late", f"{text}: what was measured is the load generator.", fix=_ELSEWHERE)
    elif stamped:
        why = "chunks that come in between count as one, so that inter-token latencies are coarse; the others stand"
        yield Finding.warning("client-reads-late", f"{text}: {why}.", fix=_ELSEWHERE)
    else:
        yield Finding.warning("client-reads-late", f"{text}: the upper percentiles are partly its own.", fix=_ELSEWHERE)


def _sends_late(strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    """Latencies of an open loop run from the intended time, so a request that is sent late looks like a slow server."""
    limit = max(_TIMER_S, thresholds.client_late * strain.ttft_s)
    if max(strain.lag_s, strain.usual_lag_s) <= limit:
        return
    text = (
        f"requests for {strain.arm} went out {strain.usual_lag_s * 1e3:.1f} ms after their time (median; P99 "
        f"{strain.lag_s * 1e3:.1f} ms), and the median time to first token, which holds that lag, is "
        f"{strain.ttft_s * 1e3:.0f} ms"
    )
    severity = Severity.ERROR if strain.usual_lag_s > limit else Severity.WARNING
    yield Finding(code="client-sends-late", severity=severity, message=f"{text}.", fix=_ELSEWHERE)


def _takes_cores(run: Run, strain: _Strain, thresholds: Thresholds) -> Iterator[Finding]:
    cores = run.context.hardware.cores
    if (
        isinstance(cores, int)
        and strain.cores >= thresholds.client_share * cores
        and all(arm.is_here for arm in run.plan.arms)
    ):
        text = f"the load generator used {strain.cores:.2f} of the {cores} cores that it shares with {strain.arm}."
        yield Finding.warning("client-beside-server", text, fix="Measure from another machine.")


def _missing(cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a comparison from which so many requests are missing that the rest is a selection."""
    shares = {}
    for arm in (cell.baseline, cell.candidate):
        asked = cell.requests[arm]
        shares[arm] = sum(answer.error is not None for answer in asked) / max(1, len(asked))
    if max(shares.values()) > thresholds.failed_requests:
        text = ", ".join(f"{share:.0%} of {arm}'s" for arm, share in shares.items())
        why = "what is left is a selection, often of the quick and the short"
        yield Finding.error(
            "too-many-failures", f"requests failed: {text}; {why}.", fix="See what the servers say about them."
        )


def _median_or_zero(values: Iterable[float | None]) -> float:
    """Return the median of the values that are there, 0 where none is."""
    return median([value for value in values if value is not None] or [0.0])


def _find_gap_s(answer: Answer) -> float | None:
    """Return the mean time between two chunks of an answer, None below two chunks."""
    chunks = answer.timing.chunks
    return (chunks[-1][0] - chunks[0][0]) / (len(chunks) - 1) if len(chunks) > 1 else None
