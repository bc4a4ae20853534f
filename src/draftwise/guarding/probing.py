"""What a probe of a replica says to a guard: what its traffic would see of it, and whether it drafts as it did."""

from __future__ import annotations

from math import exp

from draftwise.backends.backend import Probed
from draftwise.core import Baseline, InvalidSetup
from draftwise.guarding.reading import ProbeReading
from draftwise.watching.fingerprint import compare_probe, take_answers
from draftwise.watching.yardstick import Yardstick

__all__ = ["read_probe", "refuse_unless_comparable"]


def refuse_unless_comparable(baseline: Baseline | None) -> Baseline:
    """Return a baseline that a probe can be held against.

    Raises:
        InvalidSetup: it has no probe, or does not say what to expect of the traffic.
    """
    if baseline is None or not baseline.probe or baseline.expected is None:
        raise InvalidSetup.because(
            "probe-without-baseline",
            "A probe of other prompts than the service's says something only beside the same probe of a good server.",
            where="--probe",
            fix="Record one: draftwise watch URL --baseline FILE --record-baseline FILE.",
        )
    return baseline


def read_probe(probed: Probed, baseline: Baseline, *, at_s: float) -> ProbeReading | None:
    """Return what a probe says of a replica; None where its steps cannot be counted, or too few prompts be compared.

    The probe's prompts are not the service's. What carries over is the change: by the factor that the probe's tokens
    per step have changed, those of the traffic have, from what the baseline expects.
    """
    answers = take_answers(probed)
    expected = Yardstick(baseline=baseline).tokens_per_step
    found = compare_probe(answers, baseline.probe, baseline.probe_null) if answers else None
    if found is None or found.change is None or found.differs is None or expected is None:
        return None
    return ProbeReading(at_s=at_s, tokens_per_step=expected * exp(found.change), is_same=not found.differs)
