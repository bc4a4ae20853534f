"""Compares a service before and after a roll-out, with `upgrade`'s findings on the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from draftwise.core import Finding, Window
from draftwise.knowledge.messages import refusal, warning

if TYPE_CHECKING:
    from draftwise.setups.read import SetupReading

LAST = "last"
"""Value that means the start of the newest server."""
_TOGETHER_S = 3600.0
"""Starts at most this many seconds apart belong to one roll-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOut:
    """A period in which servers were replaced, in seconds since the epoch."""

    began_s: float
    ended_s: float
    num_servers: int
    """Number of running servers started within it; 0 if a time was given and none started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    """Change from one setup to another."""

    findings: tuple[Finding, ...]
    """Findings of `upgrade` on it."""
    releases: tuple[str, str] | None
    """Releases of vLLM before and after, if they differ and nothing else does."""


def parse_time(text: str) -> float | None:
    """Parse the time that an operator gives. Returns seconds since the epoch; None: the last roll-out.

    Raises:
        InvalidSetup: the text is not a time.
    """
    if text == LAST:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise refusal("not-a-time", text=text, last=LAST) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def find_rollout(starts_s: Sequence[float], at_s: float | None) -> RollOut | None:
    """Return the roll-out derived from the servers' start times; None without one.

    Args:
        starts_s: start times of the running servers.
        at_s: start of the roll-out, if the operator gives it.
    """
    if at_s is not None:
        after = [start for start in starts_s if start >= at_s]
        return RollOut(began_s=at_s, ended_s=max(after, default=at_s), num_servers=len(after))
    if not starts_s:
        return None
    newest = max(starts_s)
    together = [start for start in starts_s if start >= newest - _TOGETHER_S]
    return RollOut(began_s=min(together), ended_s=newest, num_servers=len(together))


def tell_rollout(rollout: RollOut | None, before: Window | None, after: Window | None) -> Finding:
    """Return a note on what changed in a roll-out. Diagnoses judge the effect."""
    if rollout is None:
        return warning("rollout-unknown")
    span = " to ".join(dict.fromkeys(_clock(at_s) for at_s in (rollout.began_s, rollout.ended_s)))
    text = f"{rollout.num_servers} of today's servers started in the roll-out of {span}."
    if before is None or after is None:
        text += f" Nothing is known about the time {('before' if before is None else 'after')} it."
    else:
        readings = "; ".join(_compare(before, after))
        text += f" Before and after: {readings}." if readings else " Neither side had traffic to compare."
    return Finding.info("rolled-out", text, where="roll-out")


def compare_setups(before_file: Path, after_file: Path) -> SetupStep:
    """Compare two setups as `upgrade` does, each with its own release.

    Raises:
        InvalidSetup: a file starts no server, or one of an unknown release.
    """
    from draftwise.plan.release_changes import compare_releases

    before, after = _read(before_file), _read(after_file)
    upgrade = compare_releases(before, after)
    findings: list[Finding] = [*upgrade.breaks, *upgrade.other]
    changes = "; ".join(f"{each.what} {each.before} -> {each.after}" for each in upgrade.changes)
    if changes:
        text = f"Defaults that changed from vLLM {upgrade.before.version} to {upgrade.after.version}: {changes}."
        findings.append(Finding.info("defaults-changed", text, where=str(after_file)))
    releases = upgrade.before.version, upgrade.after.version
    as_new = replace(before.setup, engine_version=after.setup.engine_version)
    is_alone = as_new == after.setup and releases[0] != releases[1]
    return SetupStep(findings=tuple(findings), releases=releases if is_alone else None)


def _read(path: Path) -> SetupReading:
    from draftwise.setups.read import read_setups

    readings = read_setups(path)
    return next((reading for reading in readings if reading.setup.spec is not None), readings[0])


def _compare(before: Window, after: Window) -> Iterator[str]:
    for name, form, unit in (
        ("tokens_per_step", "tokens per step {:.2f}", 1.0),
        ("coverage", "coverage {:.2f}", 1.0),
        ("seconds_per_token", "{:.1f} ms a token", 1e3),
        ("mean_first_token_s", "first token {:.2f} s", 1.0),
        ("batch", "{:.1f} running", 1.0),
    ):
        then, now = getattr(before, name), getattr(after, name)
        if then is not None and now is not None:
            yield f"{form.format(unit * then)}, {form.format(unit * now).removeprefix(form.partition('{')[0])}"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
