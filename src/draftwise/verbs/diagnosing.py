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

_OF_SERVERS = (UNREAD, HUNG, "engine-dies", "several-behind-url", "same-server-twice")
"""Findings about whole servers, which explain what happens to the others."""


def add_diagnoses(
    snapshot: Snapshot,
    baseline: Baseline | None,
    asked: SideInfo | None,
    fingerprints: Sequence[Fingerprint] = (),
    earlier: Window | None = None,
) -> Snapshot:
    """Return what was seen with what is wrong: servers that cannot be read, diagnoses, then what would be misread.

    A server that is gone explains what happens to the others, and nothing that is read of these says so.

    Args:
        snapshot: what was seen.
        baseline: what the pools are held against.
        asked: the information given besides the counters.
        fingerprints: of the servers that were probed.
        earlier: window of a time that was good, such as before a roll-out; else the one that the baseline has.
    """
    pools = {pool: snapshot.of(pool) for pool in snapshot.pools if pool != PLAIN}
    probe = max(fingerprints, key=lambda each: (each.differs is not None, bool(each.differs)), default=None)
    seen = None if baseline is None else baseline.seen
    expected = PoolExpectation(yardstick=Yardstick(baseline=baseline), earlier=earlier or seen)
    found = diagnose(pools, expected, snapshot.of(PLAIN), replace(asked or SideInfo(), probe=probe))
    wholes = filter(None, map(Window.pooled, pools.values()))
    notes = (note for whole in wholes for note in find_misleading(whole))
    gone = [each for each in snapshot.findings if each.code in _OF_SERVERS]
    rest = [each for each in snapshot.findings if each.code not in _OF_SERVERS]
    told = {(each.code, each.where) for each in gone}
    found = tuple(each for each in found if (each.code, each.where) not in told)
    return replace(snapshot, findings=(*gone, *found, *rest, *notes))
