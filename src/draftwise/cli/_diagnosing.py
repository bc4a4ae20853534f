"""The diagnoses of `draftwise watch`: made of what was seen and what was given beside it, and shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import expm1
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._findings import MARKS
from draftwise.core import Baseline, Diagnosis, UnreadableSource
from draftwise.watch.diagnose import Asked, Expectation, diagnose
from draftwise.watch.fingerprint import Fingerprint
from draftwise.watch.watcher import Sight
from draftwise.watch.yardstick import Yardstick

__all__ = ["PLAIN", "add_diagnoses", "read_asked", "render_diagnoses"]

PLAIN = "plain"


def read_asked(setup_file: Path | None, start_log: Path | None) -> Asked:
    """Return what is given of the servers' setup and of how they started.

    Raises:
        UnreadableSource: a file cannot be read, or holds no setup.
    """
    log = None if start_log is None else _read(start_log)
    if setup_file is None:
        return Asked(log=log)
    from draftwise.deploy.verify.manifests import read_setup
    from draftwise.plan.check import check

    setup = read_setup(setup_file)
    rulings = {finding.code: finding.message for finding in check(setup, nearest=True).findings}
    return Asked(spec=setup.spec, rulings=rulings, log=log)


def add_diagnoses(
    sight: Sight, baseline: Baseline | None, asked: Asked, fingerprints: Sequence[Fingerprint] = ()
) -> Sight:
    """Return what was seen with what is wrong, the diagnoses first.

    Args:
        sight: what was seen.
        baseline: what the pools are held against.
        asked: what was given beside the counters.
        fingerprints: of the servers that were probed.
    """
    pools = {pool: sight.of(pool) for pool in sight.pools if pool != PLAIN}
    probe = max(fingerprints, key=lambda each: (each.differs is not None, bool(each.differs)), default=None)
    expected = Expectation(yardstick=Yardstick(baseline=baseline))
    found = diagnose(pools, expected, sight.of(PLAIN), replace(asked, probe=probe))
    return replace(sight, findings=(*found, *sight.findings))


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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UnreadableSource.because(
            "unreadable-file", f"{path} cannot be read ({error}).", where=str(path)
        ) from None
