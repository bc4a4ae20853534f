"""Records how a service is now as its baseline, for one that no run has measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftwise.core import NO_PROBE, Baseline, ClosedLoop, Condition, Expected, InvalidSetup, ProbeAnswer, Window
from draftwise.watching.fingerprint import find_null

__all__ = ["AS_SERVED", "FEWEST_DRAFTS", "record_baseline"]

AS_SERVED = "as served"
"""Workload of what was seen in production."""
_NO_RUN = "No run has measured this service: its break-even, its crossover and the times of its steps are not known."
FEWEST_DRAFTS = 1000
"""From which the rates of a window are kept: two digits of them are right."""


def record_baseline(
    window: Window | None, repeats: Sequence[Sequence[ProbeAnswer]], known: Baseline | None = None
) -> Baseline:
    """Return a baseline of what was seen.

    Args:
        window: of the service; kept where it saw enough drafts, and as what to expect where nothing is known yet.
        repeats: of the probe, each with the answers to all prompts.
        known: a baseline to which the probe is added; what a run measured stays.

    Raises:
        InvalidSetup: the steps of the probe's answers cannot be counted.
    """
    if not all(repeats):
        raise InvalidSetup.because(
            "probe-undecided",
            "The probe's steps cannot be counted on this server, so that no later probe could be compared.",
            where="--record-baseline",
            fix="Start it with --stream-interval 1, or from vLLM 0.29 on with --per-request-spec-decode-metrics.",
        )
    expected = _expect(window)
    base = known or Baseline(setup_sha256="", missing=tuple(_list_missing(expected)), expected=expected)
    answers = tuple(answer for each in repeats for answer in each)
    missing = tuple(each for each in base.missing if each != NO_PROBE)
    seen = None if window is None or expected is None else replace(window, instance="")
    return replace(base, probe=answers, probe_null=find_null(repeats), missing=missing, seen=seen or base.seen)


def _expect(window: Window | None) -> Expected | None:
    if window is None or window.counters.spec.num_drafts < FEWEST_DRAFTS:
        return None
    load = ClosedLoop(concurrency=max(1, round(window.batch or 1)))
    return Expected(workload=AS_SERVED, condition=Condition(load=load), counters=window.counters)


def _list_missing(expected: Expected | None) -> Iterator[str]:
    yield _NO_RUN
    if expected is None:
        yield f"Fewer than {FEWEST_DRAFTS} drafts were seen: what to expect of the traffic is not known."
