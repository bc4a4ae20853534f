"""The diagnoses of `draftwise watch`: made of what was seen and what was given beside it, and shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import expm1

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._findings import MARKS
from draftwise.core import Baseline, Diagnosis, Window
from draftwise.watching.diagnose import PoolExpectation, SideInfo, diagnose
from draftwise.watching.fingerprint import Fingerprint
from draftwise.watching.watcher import PLAIN, UNREAD, Snapshot
from draftwise.watching.yardstick import Yardstick, find_misleading

__all__ = ["PLAIN", "add_diagnoses", "render_diagnoses"]


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
        asked: what was given beside the counters.
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
    gone = [each for each in snapshot.findings if each.code == UNREAD]
    rest = [each for each in snapshot.findings if each.code != UNREAD]
    return replace(snapshot, findings=(*gone, *found, *rest, *notes))


def render_diagnoses(diagnoses: Iterable[Diagnosis]) -> RenderableType:
    """Return what is wrong, what costs most first: the message, what it rests on, what to do, and what it may be."""
    found = list(diagnoses)
    follow = {each.code: [other.code for other in found if other.follows_from == each.code] for each in found}
    return Group(*(line for each in found if not each.follows_from for line in _list_lines(each, follow[each.code])))


def _list_lines(diagnosis: Diagnosis, follow: Sequence[str]) -> Iterator[RenderableType]:
    mark, style = MARKS[diagnosis.severity]
    head = Text.assemble((f"{mark} {diagnosis.code}", style), (f"  {diagnosis.where}", "dim"))
    if diagnosis.loss:
        head.append(f"  costs {expm1(diagnosis.loss):.0%} more time a token", "bold")
    yield head
    details = [(diagnosis.message, ""), ("; ".join(diagnosis.evidence), "dim"), (f"fix: {diagnosis.fix}", "")]
    if follow:
        details.append((f"what follows from it: {', '.join(follow)}", "dim"))
    if diagnosis.candidates:
        tells = f"; {diagnosis.settles} tells more" if diagnosis.settles else ""
        details.append((f"it may be: {', '.join(diagnosis.candidates)}{tells}", "dim"))
    yield from (Padding(Text(text, style), (0, 0, 0, 4), expand=False) for text, style in details if text)
