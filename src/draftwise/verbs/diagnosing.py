"""Diagnoses a service from its counters and the side information you give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftwise.core import Baseline, Window
from draftwise.watching.diagnose import PoolExpectation, SideInfo, diagnose
from draftwise.watching.fingerprint import Fingerprint
from draftwise.watching.stalls import HUNG
from draftwise.watching.watcher import PLAIN, UNREAD, Snapshot
from draftwise.watching.yardstick import Yardstick, find_misleading

_OF_SERVERS = (UNREAD, HUNG, "engine-dies", "rank-silent", "several-behind-url", "same-server-twice")
"""Findings about whole servers, which explain what happens to the others."""


def add_diagnoses(
    snapshot: Snapshot,
    baseline: Baseline | None,
    asked: SideInfo | None,
    fingerprints: Sequence[Fingerprint] = (),
    earlier: Window | None = None,
) -> Snapshot:
    """Return the snapshot with its findings: unreadable servers, diagnoses, then readings that are easily misread.

    A missing server can explain changes in the others, which their own counters do not show.

    Args:
        snapshot: readings of the service.
        baseline: values to compare the pools with.
        asked: the side information that you gave.
        fingerprints: results of the probed servers.
        earlier: window of a healthy time, such as before a roll-out; None for the baseline's.
    """
    pools = {pool: snapshot.serving(pool) for pool in snapshot.pools if pool != PLAIN}
    probe = max(fingerprints, key=lambda each: (each.differs is not None, bool(each.differs)), default=None)
    info = replace(asked or SideInfo(), probe=probe)
    seen = None if baseline is None else baseline.seen
    expected = PoolExpectation(yardstick=Yardstick(baseline=baseline), earlier=earlier or seen)
    found = diagnose(pools, expected, snapshot.serving(PLAIN), info)
    if snapshot.gone:  # of servers that were replaced, only what their successors do worse counts
        known, all_pools = {each.code for each in found}, {pool: snapshot.of(pool) for pool in pools}
        names = {each.instance for windows in pools.values() for each in windows}
        also = diagnose(all_pools, expected, snapshot.serving(PLAIN), info)
        found += tuple(each for each in also if each.where in names and each.code not in known)
    wholes = filter(None, map(Window.pooled, pools.values()))
    notes = (note for whole in wholes for note in find_misleading(whole, expected.window))
    gone = [each for each in snapshot.findings if each.code in _OF_SERVERS]
    rest = [each for each in snapshot.findings if each.code not in _OF_SERVERS]
    told = {(each.code, each.where) for each in gone}
    found = tuple(each for each in found if (each.code, each.where) not in told)
    return replace(snapshot, findings=(*gone, *found, *rest, *notes))
